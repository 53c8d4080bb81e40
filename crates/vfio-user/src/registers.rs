//! Execution of the commands for the guest's register accesses: `VFIO_USER_REGION_READ`, `_WRITE` and `_WRITE_MULTI`.

use crate::commands::CommandResult;
use crate::device::PciDevice;
use crate::error::CommandError;
use crate::limits::MAX_DATA_BYTES;
use crate::payload::{decode_payload, wrong_size_error};
use crate::session::{CommandOutcome, Session};
use crate::wire::{Header, NUM_REGIONS, RegionAccess, SmallWrite, WriteMulti};

impl Session {
    /// REGION_READ: reads registers of the device, and replies their bytes.
    pub(crate) fn region_read(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let access = decode_payload!(RegionAccess, exactly payload);
        check_region_access(&access, device)?;
        let count = access.count as usize;
        self.begin_reply(header, RegionAccess::BYTES + count);
        access.encode(&mut self.outgoing.bytes);
        let start = self.outgoing.bytes.len();
        self.outgoing.bytes.resize(start + count, 0);
        let data = &mut self.outgoing.bytes[start..];
        device.read_region(&mut self.bus, access.region, access.offset, data);
        Ok(CommandOutcome::Replied)
    }

    /// REGION_WRITE: writes registers of the device.
    pub(crate) fn region_write(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let access = decode_payload!(RegionAccess, first of payload);
        let data = &payload[RegionAccess::BYTES..];
        check_region_access(&access, device)?;
        if data.len() != access.count as usize {
            return Err(wrong_size_error(
                "data of a write",
                access.count as usize,
                data.len(),
            ));
        }
        device.write_region(&mut self.bus, access.region, access.offset, data);
        self.begin_reply(header, RegionAccess::BYTES);
        access.encode(&mut self.outgoing.bytes);
        Ok(CommandOutcome::Replied)
    }

    /// REGION_WRITE_MULTI: does several small writes. An error ends them; those before it are done.
    pub(crate) fn region_write_multi(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let many = decode_payload!(WriteMulti, first of payload);
        let writes = &payload[WriteMulti::BYTES..];
        if u64::try_from(writes.len() / SmallWrite::BYTES) != Ok(many.count)
            || !writes.len().is_multiple_of(SmallWrite::BYTES)
        {
            return Err(CommandError::invalid(format!(
                "{} writes in {} bytes: {} bytes for each are expected",
                many.count,
                writes.len(),
                SmallWrite::BYTES
            )));
        }
        for write in writes.chunks_exact(SmallWrite::BYTES) {
            let SmallWrite {
                offset,
                region,
                count,
                data,
            } = decode_payload!(SmallWrite, exactly write);
            let data = data.to_ne_bytes();
            let data = data.get(..count as usize).ok_or_else(|| {
                CommandError::invalid(format!(
                    "one of several writes has {count} bytes, the most are 8"
                ))
            })?;
            let access = RegionAccess {
                offset,
                region,
                count,
            };
            check_region_access(&access, device)?;
            device.write_region(&mut self.bus, region, offset, data);
        }
        self.begin_reply(header, WriteMulti::BYTES);
        many.encode(&mut self.outgoing.bytes);
        Ok(CommandOutcome::Replied)
    }
}

/// Checks that an access lies in its region.
fn check_region_access(access: &RegionAccess, device: &dyn PciDevice) -> Result<(), CommandError> {
    let RegionAccess {
        offset,
        region,
        count,
    } = *access;
    let bytes = match region {
        0..NUM_REGIONS => device.region_bytes(region),
        _ => 0,
    };
    let end = offset.checked_add(count.into());
    if count == 0 || count > MAX_DATA_BYTES || end.is_none_or(|end| end > bytes) {
        return Err(CommandError::invalid(format!(
            "an access to {count} bytes at {offset:#x} of region {region}, which has {bytes}"
        )));
    }
    Ok(())
}
