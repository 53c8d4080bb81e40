//! A SCSI unit for a node, whichever adapter it is behind.

use std::sync::Arc;

use block::Node;
use options::LunOptions;
use scsi::{Identity, Keeper, Unit, UnitOptions};

use crate::disk::pr_file::PrFile;
use crate::failure::Failure;

/// A unit, and what keeps its reservations.
pub(crate) type Kept = (Arc<Unit>, Option<Arc<PrFile>>);

/// A unit of a controller that shows a node, if it can. One that is `awaited` is another process's still.
pub(crate) fn unit(
    controller: &str,
    lun: &LunOptions,
    node: &Node,
    write_through: bool,
    awaited: bool,
) -> Result<Kept, Failure> {
    check_writable(node, lun.writable)?;
    node.use_block_size(lun.device.logical_block_size)?;
    let (keeper, text) = match &lun.device.pr_file {
        None => (None, None),
        Some(path) if awaited => (Some(PrFile::awaited(path)), None),
        Some(path) => {
            let (file, text) = PrFile::open(path)?;
            (Some(file), Some(text))
        }
    };
    let keeper = keeper.map(Arc::new);
    let options = UnitOptions {
        identity: identity(controller, lun),
        logical_block_size: lun.device.logical_block_size,
        read_only: !lun.writable,
        write_through,
        thin: node.unmap(),
        rotation_rate: lun.device.rotation_rate,
        keeper: keeper.clone().map(|file| file as Arc<dyn Keeper>),
    };
    let name = node.name();
    let unit = Unit::new(options, node.geometry());
    let unit = unit.map_err(|error| format!("node '{name}': {error}"))?;
    if let (Some(text), Some(path)) = (text, &lun.device.pr_file) {
        PrFile::restore(path, &text, &unit)?;
    }
    Ok((Arc::new(unit), keeper))
}

/// What it is called. Its world wide name is made of its serial number, or else of its place, unless another name is given.
fn identity(controller: &str, lun: &LunOptions) -> Identity {
    let device = &lun.device;
    let usual = Identity::default();
    let made = || {
        let place = || format!("{controller}:{}:{}", lun.target, lun.lun);
        let text = lun.device.serial.clone().unwrap_or_else(place);
        world_wide_name(text.as_bytes())
    };
    Identity {
        vendor: device.vendor.clone().unwrap_or(usual.vendor),
        product: device.product.clone().unwrap_or(usual.product),
        revision: device.version.clone().unwrap_or(usual.revision),
        serial: lun.device.serial.clone().unwrap_or_default(),
        naa: device.wwn.or_else(|| device.device_id.is_none().then(made)),
        eui: None,
        vendor_specific: device.device_id.clone().unwrap_or_default(),
    }
}

/// A locally assigned name of 64 bits (NAA 3), which is the same whenever the text is.
pub fn world_wide_name(text: &[u8]) -> u64 {
    // FNV-1a: nobody has an interest in two that are the same.
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    3 << 60 | hash >> 4
}

/// A node that guests are to write to lets them.
pub(crate) fn check_writable(node: &Node, writable: bool) -> Result<(), Failure> {
    if writable && node.read_only() {
        let name = node.name();
        return Err(
            format!("--export: node '{name}' is read-only; export it without writable=on").into(),
        );
    }
    Ok(())
}
