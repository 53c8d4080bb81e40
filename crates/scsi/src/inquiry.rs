//! INQUIRY: standard data of a unit, its vital product data pages (from `vpd.rs`), and the answer of a LUN without a unit.

use crate::bytes::put_bytes;
use crate::cdb::Cdb;
use crate::identity::padded_with_spaces;
use crate::sense::Sense;
use crate::unit::Unit;
use crate::vpd;

/// Bytes of standard data.
const STANDARD_BYTES: usize = 96;

/// SPC-4.
const VERSION: u8 = 0x06;

/// SAM-5, SPC-4, SBC-3.
const VERSION_DESCRIPTORS: [u16; 3] = [0x00a0, 0x0460, 0x04c0];

/// Peripheral qualifier and device type of a number without a unit.
const NO_UNIT: u8 = 0x7f;

/// Appends the data to `out`, and returns the allocation length.
pub(crate) fn inquiry(
    cdb: &Cdb,
    unit: &Unit,
    target_port: u16,
    out: &mut Vec<u8>,
) -> Result<u64, Sense> {
    let page = cdb.byte(2);
    if cdb.bit(1, 0) {
        vpd::append_page(page, unit, target_port, out)?;
    } else if page != 0 {
        return Err(Sense::invalid_cdb_field(2, None));
    } else {
        append_standard_data(unit, out);
    }
    Ok(u64::from(cdb.be16(3)))
}

/// INQUIRY for a number without a unit.
pub(crate) fn inquiry_without_unit(cdb: &Cdb, out: &mut Vec<u8>) -> Result<u64, Sense> {
    if cdb.bit(1, 0) {
        return Err(Sense::invalid_cdb_field(1, Some(0)));
    }
    if cdb.byte(2) != 0 {
        return Err(Sense::invalid_cdb_field(2, None));
    }
    out.resize(36, 0);
    out[0] = NO_UNIT;
    out[2] = VERSION;
    out[3] = 0x12;
    out[4] = 31;
    out[8..36].fill(b' ');
    Ok(u64::from(cdb.be16(3)))
}

/// Appends standard data: device type, versions and names.
fn append_standard_data(unit: &Unit, out: &mut Vec<u8>) {
    let identity = &unit.options.identity;
    // No removable medium; present formats of LUNs and of this data.
    out.extend([0x00, 0x00, VERSION, 0x12]);
    out.push(crate::bytes::saturated_u8(STANDARD_BYTES - 5));
    // CMDQUE: tasks are queued.
    out.extend([0, 0, 0x02]);
    out.extend(padded_with_spaces(&identity.vendor, 8));
    out.extend(padded_with_spaces(&identity.product, 16));
    out.extend(padded_with_spaces(&identity.revision, 4));
    out.resize(STANDARD_BYTES, 0);
    for (index, descriptor) in VERSION_DESCRIPTORS.iter().enumerate() {
        put_bytes(out, 58 + 2 * index, &descriptor.to_be_bytes());
    }
}
