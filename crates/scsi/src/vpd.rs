//! Encodes the vital product data pages of INQUIRY, and computes the limits that one of them reports, of UNMAP and COMPARE
//! AND WRITE.

use crate::buffer::MAX_BUFFER_BYTES;
use crate::bytes::{put_bytes, saturated_u8, saturated_u16, saturated_u32};
use crate::identity::padded_with_spaces;
use crate::sense::{MAX_SENSE_BYTES, Sense};
use crate::unit::Unit;

const SUPPORTED_PAGES: u8 = 0x00;
const SERIAL_NUMBER: u8 = 0x80;
const IDENTIFICATION: u8 = 0x83;
const EXTENDED_INQUIRY: u8 = 0x86;
const BLOCK_LIMITS: u8 = 0xb0;
const CHARACTERISTICS: u8 = 0xb1;
const PROVISIONING: u8 = 0xb2;

/// Most blocks of one COMPARE AND WRITE: its field and a task's own buffer limit it.
pub(crate) fn max_compare_blocks(unit: &Unit) -> u8 {
    saturated_u8(MAX_BUFFER_BYTES >> unit.block_shift())
}

/// Most ranges of one UNMAP.
pub(crate) const MAX_UNMAP_RANGES: usize = 256;

/// Most blocks of one UNMAP that initiators accept as a limit.
const MAX_UNMAP_BLOCKS: u64 = 1 << 20;

/// Appends a page with its header.
pub(crate) fn append_page(
    code: u8,
    unit: &Unit,
    port: u16,
    out: &mut Vec<u8>,
) -> Result<(), Sense> {
    let body = match code {
        SUPPORTED_PAGES => supported_pages_body(unit),
        SERIAL_NUMBER if has_serial(unit) => unit.options.identity.serial.bytes().collect(),
        IDENTIFICATION => identification_body(unit, port),
        EXTENDED_INQUIRY => extended_inquiry_body(),
        BLOCK_LIMITS => block_limits_body(unit),
        CHARACTERISTICS => characteristics_body(unit),
        PROVISIONING => provisioning_body(unit),
        _ => return Err(Sense::invalid_cdb_field(2, None)),
    };
    out.extend([0, code]);
    out.extend(saturated_u16(body.len()).to_be_bytes());
    out.extend(body);
    Ok(())
}

fn has_serial(unit: &Unit) -> bool {
    !unit.options.identity.serial.is_empty()
}

/// SUPPORTED VPD PAGES: the codes of all pages of the unit.
fn supported_pages_body(unit: &Unit) -> Vec<u8> {
    let mut pages = vec![SUPPORTED_PAGES];
    if has_serial(unit) {
        pages.push(SERIAL_NUMBER);
    }
    pages.extend([
        IDENTIFICATION,
        EXTENDED_INQUIRY,
        BLOCK_LIMITS,
        CHARACTERISTICS,
        PROVISIONING,
    ]);
    pages
}

/// Of the unit.
const OF_UNIT: u8 = 0x00;
/// Of the target port.
const OF_TARGET_PORT: u8 = 0x10;

/// Appends a designation descriptor of the unit or of the target port.
fn append_designator(body: &mut Vec<u8>, code_set: u8, of: u8, kind: u8, bytes: &[u8]) {
    body.extend([code_set, of | kind, 0, saturated_u8(bytes.len())]);
    body.extend(bytes);
}

/// DEVICE IDENTIFICATION: names of the unit, and the target port's number.
fn identification_body(unit: &Unit, port: u16) -> Vec<u8> {
    let identity = &unit.options.identity;
    let mut body = Vec::new();
    if identity.vendor_specific.is_empty() {
        // T10 vendor identification: unique if product and serial number are.
        let mut name: Vec<u8> = padded_with_spaces(&identity.vendor, 8).collect();
        if has_serial(unit) {
            name.extend(identity.serial.bytes());
        } else {
            name.extend(identity.product.bytes());
        }
        append_designator(&mut body, 2, OF_UNIT, 1, &name);
    } else {
        append_designator(
            &mut body,
            2,
            OF_UNIT,
            0,
            identity.vendor_specific.as_bytes(),
        );
    }
    if let Some(naa) = identity.naa {
        append_designator(&mut body, 1, OF_UNIT, 3, &naa.to_be_bytes());
    }
    if let Some(eui) = identity.eui {
        append_designator(&mut body, 1, OF_UNIT, 2, &eui.to_be_bytes());
    }
    let [high, low] = port.to_be_bytes();
    append_designator(&mut body, 1, OF_TARGET_PORT, 4, &[0, 0, high, low]);
    body
}

/// EXTENDED INQUIRY DATA: attributes of tasks, and other properties that do not change.
fn extended_inquiry_body() -> Vec<u8> {
    let mut body = vec![0; 60];
    // Simple, ordered and head-of-queue tasks; a volatile cache. LUICLR: REPORT LUNS clears the unit attention for changed units
    // on all units.
    body[1] = 0x07;
    body[2] = 0x01;
    body[3] = 0x01;
    body[9] = saturated_u8(MAX_SENSE_BYTES);
    body
}

/// Most blocks of all ranges of one UNMAP.
pub(crate) fn max_unmap_blocks(unit: &Unit) -> u64 {
    let most = unit.geometry.discard.max_bytes >> unit.block_shift();
    most.clamp(1, MAX_UNMAP_BLOCKS)
}

/// BLOCK LIMITS: most blocks of each command, and granularities.
fn block_limits_body(unit: &Unit) -> Vec<u8> {
    let geometry = &unit.geometry;
    let blocks = |bytes: u32| saturated_u32(u64::from(bytes) >> unit.block_shift());
    let mut body = vec![0; 60];
    // WSNZ: WRITE SAME with 0 blocks is not supported.
    body[0] = 0x01;
    body[1] = max_compare_blocks(unit);
    let granularity = geometry.min_io_size.max(geometry.physical_block_size);
    let granularity = u16::try_from(blocks(granularity)).unwrap_or(0);
    put_bytes(&mut body, 2, &granularity.to_be_bytes());
    put_bytes(
        &mut body,
        4,
        &saturated_u32(unit.max_transfer_blocks()).to_be_bytes(),
    );
    put_bytes(&mut body, 8, &blocks(geometry.opt_io_size).to_be_bytes());
    if unit.options.thin {
        put_bytes(
            &mut body,
            16,
            &saturated_u32(max_unmap_blocks(unit)).to_be_bytes(),
        );
        let ranges = saturated_u32(MAX_UNMAP_RANGES as u64);
        put_bytes(&mut body, 20, &ranges.to_be_bytes());
        let granularity = blocks(geometry.discard.granularity).max(1);
        put_bytes(&mut body, 24, &granularity.to_be_bytes());
        // UGAVALID: aligned to the first block.
        body[28] = 0x80;
    }
    // WRITE SAME is split into steps, so its field is the only limit.
    put_bytes(&mut body, 32, &u64::from(u32::MAX).to_be_bytes());
    body
}

/// BLOCK DEVICE CHARACTERISTICS: the rotation rate.
fn characteristics_body(unit: &Unit) -> Vec<u8> {
    let mut body = vec![0; 60];
    put_bytes(&mut body, 0, &unit.options.rotation_rate.to_be_bytes());
    body
}

/// LOGICAL BLOCK PROVISIONING: the ways to deallocate blocks.
fn provisioning_body(unit: &Unit) -> Vec<u8> {
    if unit.options.thin {
        // LBPU, LBPWS, LBPWS10; thin. The contents of unmapped blocks are undefined.
        vec![0, 0xe0, 0x02, 0]
    } else {
        vec![0; 4]
    }
}
