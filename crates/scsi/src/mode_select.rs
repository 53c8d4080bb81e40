//! MODE SELECT(6) and (10): checks the parameter list and applies its mode pages, all or none.

use crate::bytes::{be_number, be16, be32, be64, byte};
use crate::cdb::Cdb;
use crate::mode_pages;
use crate::nexus::NexusNumber;
use crate::sense::Sense;
use crate::steps::AfterFlush;
use crate::unit::Unit;
use crate::unit_attention::code;

/// The length of the parameter list.
pub(crate) fn checked_parameter_list_len(cdb: &Cdb) -> Result<u64, Sense> {
    // PF: pages are those of the standard. There are no others.
    let len = match cdb.opcode() {
        0x15 => u64::from(cdb.byte(4)),
        _ => u64::from(cdb.be16(7)),
    };
    if !cdb.bit(1, 4) && len > 0 {
        return Err(Sense::invalid_cdb_field(1, Some(4)));
    }
    Ok(len)
}

/// Applies all pages of the list, or none. `Some`: the write cache is off then, so a flush comes before the status, with this after it.
/// What was written before may be cached although it was off already: since a reset, or since a command whose flush is in flight.
pub(crate) fn mode_select(
    cdb: &Cdb,
    unit: &Unit,
    nexus: NexusNumber,
    list: &[u8],
) -> Result<Option<AfterFlush>, Sense> {
    if list.is_empty() {
        return Ok(None);
    }
    let long = cdb.opcode() == 0x55;
    let pages_at = checked_pages_offset(unit, long, list)?;
    unit.change_state_and_access_word(|state| {
        let mut wanted = state.modes;
        let mut at = pages_at;
        while at < list.len() {
            let end = checked_page_end(list, at)?;
            let page = &list[at..end];
            mode_pages::check_and_apply_page(page, &mut wanted, &unit.default_modes())
                .map_err(|invalid| Sense::invalid_parameter(at + invalid.byte, invalid.bit))?;
            at = end;
        }
        let after_flush = match (state.modes.write_cache, wanted.write_cache) {
            (_, true) => None,
            (true, false) => Some(AfterFlush::CacheWasTurnedOff),
            (false, false) => Some(AfterFlush::Nothing),
        };
        if wanted != state.modes {
            state.modes = wanted;
            state.raise_attention_for_others(nexus, code::MODE_PARAMETERS_CHANGED);
        }
        Ok(after_flush)
    })
}

/// Checks the header of the page that begins at `at`, and returns the page's end.
fn checked_page_end(list: &[u8], at: usize) -> Result<usize, Sense> {
    if byte(list, at) & 0x40 != 0 {
        // SPF: there are no subpages.
        return Err(Sense::invalid_parameter(at, Some(6)));
    }
    let end = at + 2 + usize::from(byte(list, at + 1));
    if at + 2 > list.len() || end > list.len() {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    Ok(end)
}

/// Checks header and block descriptor, and returns the start of the pages.
fn checked_pages_offset(unit: &Unit, long: bool, list: &[u8]) -> Result<usize, Sense> {
    let (header, descriptor, long_lba) = if long {
        (8, usize::from(be16(list, 6)), byte(list, 4) & 1 != 0)
    } else {
        (4, usize::from(byte(list, 3)), false)
    };
    if list.len() < header {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let len_at = if long { 6 } else { 3 };
    let whole = if long_lba { 16 } else { 8 };
    if descriptor != 0 && descriptor != whole {
        return Err(Sense::invalid_parameter(len_at, None));
    }
    if list.len() < header + descriptor {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    if descriptor == 0 {
        return Ok(header);
    }
    // The descriptor must repeat the present format; all ones, or zero, mean the present number of blocks.
    let blocks = unit.blocks();
    let (same, block) = match descriptor {
        16 => {
            let sent = be64(list, header);
            let same = sent == 0 || sent == u64::MAX || sent == blocks;
            (same, be32(list, header + 12))
        }
        _ => {
            let sent = be32(list, header);
            let same = sent == 0 || sent == u32::MAX || u64::from(sent) == blocks;
            (
                same,
                u32::try_from(be_number(list, header + 5, 3)).unwrap_or(0),
            )
        }
    };
    if !same {
        return Err(Sense::invalid_parameter(header, None));
    }
    if block != unit.block_bytes() {
        return Err(Sense::invalid_parameter(header + descriptor - 3, None));
    }
    Ok(header + descriptor)
}
