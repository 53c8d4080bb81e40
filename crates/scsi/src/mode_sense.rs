//! MODE SENSE(6) and (10): encodes header, block descriptor and mode pages.

use crate::bytes::{saturated_u8, saturated_u16, saturated_u32};
use crate::cdb::Cdb;
use crate::mode_pages::{self, PAGE_CODES, PageControl};
use crate::sense::Sense;
use crate::unit::Unit;

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;

/// Write protected.
const WP: u8 = 0x80;
/// DPO and FUA are supported.
const DPOFUA: u8 = 0x10;

/// Appends the data to `out`, and returns the allocation length and whether the write cache is on, as the data says.
pub(crate) fn mode_sense(cdb: &Cdb, unit: &Unit, out: &mut Vec<u8>) -> Result<(u64, bool), Sense> {
    let long = cdb.opcode() == 0x5a;
    let values = match cdb.byte(2) >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => return Err(Sense::SAVING_NOT_SUPPORTED),
    };
    let (code, subpage) = (cdb.byte(2) & 0x3f, cdb.byte(3));
    // No page has subpages: "all subpages" means the page itself.
    if subpage != 0 && subpage != ALL_SUBPAGES {
        return Err(Sense::invalid_cdb_field(3, None));
    }
    let (modes, protected) =
        unit.read_state(|state| (state.modes, state.write_protection_error().is_some()));
    let defaults = unit.default_modes();
    let mut pages = Vec::new();
    if code == ALL_PAGES {
        for code in PAGE_CODES {
            pages.extend(
                mode_pages::encode_page(code, values, &modes, &defaults).unwrap_or_default(),
            );
        }
    } else {
        let page = mode_pages::encode_page(code, values, &modes, &defaults);
        pages = page.ok_or(Sense::invalid_cdb_field(2, Some(5)))?;
    }
    let block = if cdb.bit(1, 3) {
        Vec::new()
    } else {
        encode_block_descriptor(unit, long && cdb.bit(1, 4))
    };
    let device = DPOFUA | if protected { WP } else { 0 };
    if long {
        let len = saturated_u16(6 + block.len() + pages.len());
        out.extend(len.to_be_bytes());
        out.extend([0, device, u8::from(block.len() == 16), 0]);
        out.extend(saturated_u16(block.len()).to_be_bytes());
    } else {
        let len = saturated_u8(3 + block.len() + pages.len());
        out.extend([len, 0, device, saturated_u8(block.len())]);
    }
    out.extend(block);
    out.extend(pages);
    let allocation = if long {
        cdb.be16(7).into()
    } else {
        cdb.byte(4).into()
    };
    Ok((allocation, modes.write_cache))
}

/// The block descriptor, of 8 or 16 bytes: number and size of blocks.
pub(crate) fn encode_block_descriptor(unit: &Unit, long: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if long {
        bytes.extend(unit.blocks().to_be_bytes());
        bytes.extend([0; 4]);
    } else {
        bytes.extend(saturated_u32(unit.blocks()).to_be_bytes());
    }
    bytes.extend(unit.block_bytes().to_be_bytes());
    bytes
}
