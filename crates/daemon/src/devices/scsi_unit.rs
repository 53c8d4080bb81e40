//! Creates the SCSI units of nodes, with their identities and persistent reservations, for virtio-scsi and the LSI 53C895A.

use std::sync::Arc;

use block::{GuestBlockMode, Node};
use options::LunOptions;
use scsi::{ReservationStore, Unit, UnitIdentity, UnitOptions};

use crate::disk::pr_file::PrFile;
use crate::error::BoxError;

/// A unit, and the file of its persistent reservations if it has one.
pub(crate) type UnitAndPrFile = (Arc<Unit>, Option<Arc<PrFile>>);

/// Creates a unit of a controller for a node. With `handover_pending`, its `pr-file` still belongs to the old process of a live
/// upgrade, and is not opened.
pub(crate) fn create_unit_with_pr_file(
    controller: &str,
    lun: &LunOptions,
    node: &Node,
    write_through: bool,
    handover_pending: bool,
) -> Result<UnitAndPrFile, BoxError> {
    let (pr_file, saved_text) = match &lun.device.pr_file {
        None => (None, None),
        Some(path) if handover_pending => (Some(PrFile::new_awaiting_handover(path)), None),
        Some(path) => {
            let (file, text) = PrFile::open_or_create_and_read(path)?;
            (Some(file), Some(text))
        }
    };
    let pr_file = pr_file.map(Arc::new);
    let options = UnitOptions {
        identity: unit_identity(controller, lun),
        logical_block_size: lun.device.logical_block_size,
        read_only: !lun.writable,
        write_through,
        thin: node.passes_discards(),
        rotation_rate: lun.device.rotation_rate,
        reservation_store: pr_file
            .clone()
            .map(|file| file as Arc<dyn ReservationStore>),
    };
    let name = node.name();
    let unit = Unit::new(options, node.geometry());
    let unit = unit.map_err(|error| format!("node '{name}': {error}"))?;
    if let (Some(text), Some(path)) = (saved_text, &lun.device.pr_file) {
        PrFile::restore_reservations_from_text(path, &text, &unit)?;
    }
    Ok((Arc::new(unit), pr_file))
}

/// Names and numbers of a unit. Its world wide name is derived from its serial number, or from its address if it has none, unless
/// the options give one.
fn unit_identity(controller: &str, lun: &LunOptions) -> UnitIdentity {
    let device = &lun.device;
    let default = UnitIdentity::default();
    let derived_name = || {
        let address = || format!("{controller}:{}:{}", lun.target, lun.lun);
        let unique_text = lun.device.serial.clone().unwrap_or_else(address);
        world_wide_name(unique_text.as_bytes())
    };
    UnitIdentity {
        vendor: device.vendor.clone().unwrap_or(default.vendor),
        product: device.product.clone().unwrap_or(default.product),
        revision: device.version.clone().unwrap_or(default.revision),
        serial: lun.device.serial.clone().unwrap_or_default(),
        naa: device
            .wwn
            .or_else(|| device.device_id.is_none().then(derived_name)),
        eui: None,
        vendor_specific: device.device_id.clone().unwrap_or_default(),
    }
}

/// A locally assigned name of 64 bits (NAA 3) that is a hash of the text.
pub fn world_wide_name(text: &[u8]) -> u64 {
    // FNV-1a: collisions are no attack, since the administrator chooses the texts.
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    3 << 60 | hash >> 4
}

/// Refuses a writable LUN on a read-only node, and sets the node's size of the guest's blocks, which is to be kept when the guest has
/// the LUN.
pub(crate) fn check_writable_and_set_guest_block_size(
    node: &Node,
    lun: &LunOptions,
) -> Result<GuestBlockMode, BoxError> {
    check_writable(node, lun.writable)?;
    Ok(node.set_guest_block_size(lun.device.logical_block_size)?)
}

/// Refuses a read-only node for a writable disk.
pub(crate) fn check_writable(node: &Node, writable: bool) -> Result<(), BoxError> {
    if writable && node.read_only() {
        let name = node.name();
        return Err(
            format!("--export: node '{name}' is read-only; export it without writable=on").into(),
        );
    }
    Ok(())
}
