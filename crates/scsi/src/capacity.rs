//! READ CAPACITY(10) and (16), and the start of GET LBA STATUS.

use crate::bytes::{put_bytes, saturated_u32};
use crate::cdb::{BlockRange, Cdb};
use crate::sense::Sense;
use crate::step::DataPhase;
use crate::steps::{Extent, GetLbaStatus, MultiStepCommand};
use crate::task::RemainingWork;
use crate::unit::Unit;

fn last_lba(unit: &Unit) -> u64 {
    unit.blocks().saturating_sub(1)
}

/// READ CAPACITY(10): the last block, limited to 32 bits, and the bytes of a block.
pub(crate) fn read_capacity_10(unit: &Unit, out: &mut Vec<u8>) -> u64 {
    out.extend(saturated_u32(last_lba(unit)).to_be_bytes());
    out.extend(unit.block_bytes().to_be_bytes());
    out.len() as u64
}

/// READ CAPACITY(16): the same with 64 bits, and properties of blocks.
pub(crate) fn read_capacity_16(cdb: &Cdb, unit: &Unit, out: &mut Vec<u8>) -> u64 {
    out.resize(32, 0);
    put_bytes(out, 0, &last_lba(unit).to_be_bytes());
    put_bytes(out, 8, &unit.block_bytes().to_be_bytes());
    let physical = unit.geometry.physical_block_size.max(unit.block_bytes());
    let exponent = (physical / unit.block_bytes()).max(1).ilog2();
    out[13] = u8::try_from(exponent.min(15)).unwrap_or(0);
    if unit.options.thin {
        // LBPME. Not LBPRZ: see the steps of UNMAP.
        out[14] = 0x80;
    }
    u64::from(cdb.be32(10))
}

/// GET LBA STATUS: which blocks are mapped. On a unit without thin provisioning all are.
pub(crate) fn prepare_lba_status(
    cdb: &Cdb,
    unit: &Unit,
) -> Result<(DataPhase, RemainingWork), Sense> {
    let (lba, blocks) = (cdb.be64(2), unit.blocks());
    if lba >= blocks {
        return Err(Sense::LBA_OUT_OF_RANGE);
    }
    let (offset, len) = unit.checked_byte_range(BlockRange {
        lba,
        blocks: blocks - lba,
    })?;
    let extent = Extent { offset, len };
    let mut steps = GetLbaStatus::new(lba, unit.block_shift(), extent, cdb.be32(10).into());
    if !unit.options.thin {
        steps.skip_query();
    }
    Ok(match steps.max_reply_bytes() {
        0 => (DataPhase::Status, RemainingWork::Nothing),
        bytes => (
            DataPhase::DataIn(bytes),
            RemainingWork::MultiStepCommand(MultiStepCommand::GetLbaStatus(steps)),
        ),
    })
}
