//! Execution of a front-end's commands: dispatches all of them, and has those for the version, DMA mappings, and information on the
//! device, its regions and interrupts. `registers` and `irqs` have the others.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::device::PciDevice;
use crate::error::CommandError;
use crate::irqs::irq_count_of_kind;
use crate::limits::MAX_DELAYED_REPLIES;
use crate::payload::decode_payload;
use crate::session::{CommandOutcome, DelayedReply, Session};
use crate::version;
use crate::wire::{
    self, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, NUM_IRQS, NUM_REGIONS, RegionInfo, command,
};

pub(crate) type CommandResult = Result<CommandOutcome, CommandError>;

/// Checks that the front-end has room for a reply.
fn check_reply_room(argsz: u32, needed: usize) -> Result<(), CommandError> {
    if (argsz as usize) < needed {
        return Err(CommandError::invalid(format!(
            "argsz is {argsz}, the reply needs {needed}"
        )));
    }
    Ok(())
}

impl Session {
    /// Executes a command. Its reply is written, or the outcome says what it waits for.
    pub(crate) fn execute_command(
        &mut self,
        header: &Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        if !fds.is_empty() && !matches!(header.command, command::DMA_MAP | command::DEVICE_SET_IRQS)
        {
            return Err(CommandError::invalid(format!(
                "{} descriptors, none are expected",
                fds.len()
            )));
        }
        if matches!(header.command, command::DMA_UNMAP | command::DEVICE_RESET)
            && self.delayed_replies.len() >= MAX_DELAYED_REPLIES
        {
            return Err(CommandError::new(
                Errno::BUSY,
                format!("{MAX_DELAYED_REPLIES} replies wait for the device already"),
            ));
        }
        match header.command {
            command::VERSION => self.negotiate_version(header, payload),
            command::DMA_MAP => self.dma_map(header, payload, fds, device),
            command::DMA_UNMAP => self.dma_unmap(payload, device),
            command::DEVICE_GET_INFO => self.reply_device_info(header, payload),
            command::DEVICE_GET_REGION_INFO => self.reply_region_info(header, payload, device),
            command::DEVICE_GET_IRQ_INFO => self.reply_irq_info(header, payload),
            command::DEVICE_SET_IRQS => {
                self.set_irqs(payload, fds)?;
                self.begin_reply(header, 0);
                Ok(CommandOutcome::Replied)
            }
            command::REGION_READ => self.region_read(header, payload, device),
            command::REGION_WRITE => self.region_write(header, payload, device),
            command::REGION_WRITE_MULTI => self.region_write_multi(header, payload, device),
            command::DEVICE_RESET => {
                device.reset(&mut self.bus);
                Ok(CommandOutcome::Delayed(DelayedReply::Reset))
            }
            other => Err(CommandError::new(
                Errno::NOTSUP,
                format!("command {other} is unknown"),
            )),
        }
    }

    /// VERSION: negotiates limits, once in a connection.
    fn negotiate_version(&mut self, header: &Header, payload: &[u8]) -> CommandResult {
        if self.negotiated.is_some() {
            return Err(CommandError::invalid("a version was negotiated already"));
        }
        let (limits, reply) = version::negotiate(payload)?;
        self.negotiated = Some(limits);
        self.begin_reply(header, reply.len());
        self.outgoing.bytes.extend_from_slice(&reply);
        Ok(CommandOutcome::Replied)
    }

    /// DMA_MAP: adds memory that the device may use.
    fn dma_map(
        &mut self,
        header: &Header,
        payload: &[u8],
        mut fds: Vec<OwnedFd>,
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let request = decode_payload!(DmaMap, exactly payload);
        if fds.len() > 1 {
            return Err(CommandError::invalid(format!(
                "DMA_MAP with {} descriptors, one is expected at most",
                fds.len()
            )));
        }
        let max = self.negotiated.map_or(0, |limits| limits.max_dma_maps);
        let is_mapped_here = self.bus.maps.map(&request, fds.pop(), max)?;
        if is_mapped_here {
            self.bus.rebuild_memory();
            device.on_memory_changed(&mut self.bus);
        }
        self.begin_reply(header, 0);
        Ok(CommandOutcome::Replied)
    }

    /// DMA_UNMAP: removes memory. The reply waits for the requests that use it.
    fn dma_unmap(&mut self, payload: &[u8], device: &mut dyn PciDevice) -> CommandResult {
        let request = decode_payload!(DmaUnmap, exactly payload);
        let DmaUnmap {
            flags,
            address,
            size,
            ..
        } = request;
        let in_use = match flags {
            0 => self.bus.maps.unmap(address, size)?.into_iter().collect(),
            wire::DMA_UNMAP_ALL if address == 0 && size == 0 => self.bus.maps.unmap_all(),
            _ => {
                return Err(CommandError::invalid(format!(
                    "DMA_UNMAP of {size:#x} bytes at {address:#x} with flags {flags:#x}: flags are 0, or \
                     {:#x} with address and size 0",
                    wire::DMA_UNMAP_ALL
                )));
            }
        };
        if !in_use.is_empty() {
            self.bus.rebuild_memory();
            device.on_memory_changed(&mut self.bus);
        }
        Ok(CommandOutcome::Delayed(DelayedReply::Unmap {
            reply: request,
            in_use,
        }))
    }

    /// DEVICE_GET_INFO: replies the kind of the device and the numbers of its regions and interrupts.
    fn reply_device_info(&mut self, header: &Header, payload: &[u8]) -> CommandResult {
        let request = decode_payload!(DeviceInfo, exactly payload);
        check_reply_room(request.argsz, DeviceInfo::BYTES)?;
        self.begin_reply(header, DeviceInfo::BYTES);
        DeviceInfo {
            argsz: DeviceInfo::SIZE,
            flags: wire::DEVICE_RESET | wire::DEVICE_PCI,
            num_regions: NUM_REGIONS,
            num_irqs: NUM_IRQS,
        }
        .encode(&mut self.outgoing.bytes);
        Ok(CommandOutcome::Replied)
    }

    /// DEVICE_GET_REGION_INFO: replies the size of a region.
    fn reply_region_info(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> CommandResult {
        let RegionInfo { argsz, index, .. } = decode_payload!(RegionInfo, exactly payload);
        check_reply_room(argsz, RegionInfo::BYTES)?;
        if index >= NUM_REGIONS {
            return Err(CommandError::invalid(format!(
                "region {index}, there are {NUM_REGIONS}"
            )));
        }
        let size = device.region_bytes(index);
        self.begin_reply(header, RegionInfo::BYTES);
        RegionInfo {
            argsz: RegionInfo::SIZE,
            flags: match size {
                0 => 0,
                _ => wire::REGION_READ_ALLOWED | wire::REGION_WRITE_ALLOWED,
            },
            index,
            cap_offset: 0,
            size,
            offset: 0,
        }
        .encode(&mut self.outgoing.bytes);
        Ok(CommandOutcome::Replied)
    }

    /// DEVICE_GET_IRQ_INFO: replies the number of interrupts of a kind.
    fn reply_irq_info(&mut self, header: &Header, payload: &[u8]) -> CommandResult {
        let IrqInfo { argsz, index, .. } = decode_payload!(IrqInfo, exactly payload);
        check_reply_room(argsz, IrqInfo::BYTES)?;
        if index >= NUM_IRQS {
            return Err(CommandError::invalid(format!(
                "interrupts of kind {index}, there are {NUM_IRQS} kinds"
            )));
        }
        if index == wire::IRQ_ERROR {
            // As VFIO does for a device that is not PCI Express. (QEMU would warn if the count was 0.)
            let refused = CommandError::invalid("no PCI Express, and so no errors of it");
            return Err(CommandError {
                is_expected: true,
                ..refused
            });
        }
        self.begin_reply(header, IrqInfo::BYTES);
        IrqInfo {
            argsz: IrqInfo::SIZE,
            flags: match index {
                wire::IRQ_INTX => wire::IRQ_EVENTFD | wire::IRQ_MASKABLE | wire::IRQ_AUTOMASKED,
                _ => 0,
            },
            index,
            count: irq_count_of_kind(index),
        }
        .encode(&mut self.outgoing.bytes);
        Ok(CommandOutcome::Replied)
    }
}
