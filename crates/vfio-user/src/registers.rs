//! Commands for the guest's register accesses.

use crate::commands::CommandResult;
use crate::device::PciDevice;
use crate::error::CommandError;
use crate::limits::MAX_DATA_BYTES;
use crate::payload::{payload, wrong_size};
use crate::session::{Outcome, Session};
use crate::wire::{Header, NUM_REGIONS, RegionAccess, SmallWrite, WriteMulti};

impl Session {
    pub(crate) fn region_read(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let access = payload!(RegionAccess, exactly payload);
        check_access(&access, device)?;
        let count = access.count as usize;
        self.reply(header, RegionAccess::BYTES + count);
        access.encode(&mut self.outgoing.bytes);
        let start = self.outgoing.bytes.len();
        self.outgoing.bytes.resize(start + count, 0);
        let data = &mut self.outgoing.bytes[start..];
        device.read(&mut self.bus, access.region, access.offset, data);
        Ok(Outcome::Replied)
    }

    pub(crate) fn region_write(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let access = payload!(RegionAccess, first of payload);
        let data = &payload[RegionAccess::BYTES..];
        check_access(&access, device)?;
        if data.len() != access.count as usize {
            return Err(wrong_size(
                "data of a write",
                access.count as usize,
                data.len(),
            ));
        }
        device.write(&mut self.bus, access.region, access.offset, data);
        self.reply(header, RegionAccess::BYTES);
        access.encode(&mut self.outgoing.bytes);
        Ok(Outcome::Replied)
    }

    pub(crate) fn write_multi(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let many = payload!(WriteMulti, first of payload);
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
            } = payload!(SmallWrite, exactly write);
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
            check_access(&access, device)?;
            device.write(&mut self.bus, region, offset, data);
        }
        self.reply(header, WriteMulti::BYTES);
        many.encode(&mut self.outgoing.bytes);
        Ok(Outcome::Replied)
    }
}

fn check_access(access: &RegionAccess, device: &dyn PciDevice) -> Result<(), CommandError> {
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
