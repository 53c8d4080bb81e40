//! A SCSI unit for a node, whichever adapter it is behind.

use block::Node;
use options::LunOptions;
use scsi::{Identity, Unit, UnitOptions};

use super::check_writable;
use crate::Failure;

/// A unit that shows a node, if it can. `naa` is its name of 64 bits, for adapters whose guests ask for one.
pub(super) fn unit(
    lun: &LunOptions,
    node: &Node,
    naa: Option<u64>,
    write_through: bool,
) -> Result<Unit, Failure> {
    check_writable(node, lun.writable)?;
    node.use_block_size(lun.logical_block_size)?;
    let options = UnitOptions {
        identity: Identity {
            serial: lun.serial.clone().unwrap_or_default(),
            naa,
            ..Identity::default()
        },
        logical_block_size: lun.logical_block_size,
        read_only: !lun.writable,
        write_through,
        thin: node.unmap(),
        ..UnitOptions::default()
    };
    let name = node.name();
    Unit::new(options, node.geometry()).map_err(|error| format!("node '{name}': {error}").into())
}

/// A locally assigned name of 64 bits (NAA 3), which is the same whenever the text is.
pub(crate) fn world_wide_name(text: &[u8]) -> u64 {
    // FNV-1a: nobody has an interest in two that are the same.
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    3 << 60 | hash >> 4
}
