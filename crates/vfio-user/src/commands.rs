//! Commands of a front-end; those for registers and interrupts have files of their own.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::device::PciDevice;
use crate::error::Refused;
use crate::irqs::irqs_of_kind;
use crate::limits::MAX_HELD;
use crate::payload::payload;
use crate::session::{Held, Outcome, Session};
use crate::version;
use crate::wire::{
    self, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, NUM_IRQS, NUM_REGIONS, RegionInfo, command,
};

pub(crate) type Carried = Result<Outcome, Refused>;

/// A reply that the front-end has no room for.
fn check_room(argsz: u32, needed: usize) -> Result<(), Refused> {
    if (argsz as usize) < needed {
        return Err(Refused::invalid(format!(
            "argsz is {argsz}, the reply needs {needed}"
        )));
    }
    Ok(())
}

impl Session {
    pub(crate) fn carry_out(
        &mut self,
        header: &Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut dyn PciDevice,
    ) -> Carried {
        if !fds.is_empty() && !matches!(header.command, command::DMA_MAP | command::DEVICE_SET_IRQS)
        {
            return Err(Refused::invalid(format!(
                "{} descriptors, none are expected",
                fds.len()
            )));
        }
        if matches!(header.command, command::DMA_UNMAP | command::DEVICE_RESET)
            && self.held.len() >= MAX_HELD
        {
            return Err(Refused::new(
                Errno::BUSY,
                format!("{MAX_HELD} replies wait for the device already"),
            ));
        }
        match header.command {
            command::VERSION => self.version(header, payload),
            command::DMA_MAP => self.dma_map(header, payload, fds, device),
            command::DMA_UNMAP => self.dma_unmap(payload, device),
            command::DEVICE_GET_INFO => self.device_info(header, payload),
            command::DEVICE_GET_REGION_INFO => self.region_info(header, payload, device),
            command::DEVICE_GET_IRQ_INFO => self.irq_info(header, payload),
            command::DEVICE_SET_IRQS => {
                self.set_irqs(payload, fds)?;
                self.reply(header, 0);
                Ok(Outcome::Answered)
            }
            command::REGION_READ => self.region_read(header, payload, device),
            command::REGION_WRITE => self.region_write(header, payload, device),
            command::REGION_WRITE_MULTI => self.write_multi(header, payload, device),
            command::DEVICE_RESET => {
                device.reset(&mut self.bus);
                Ok(Outcome::Held(Held::Reset))
            }
            other => Err(Refused::new(
                Errno::NOTSUP,
                format!("command {other} is not known"),
            )),
        }
    }

    fn version(&mut self, header: &Header, payload: &[u8]) -> Carried {
        if self.agreed.is_some() {
            return Err(Refused::invalid("a version was agreed on already"));
        }
        let (agreed, reply) = version::negotiate(payload)?;
        self.agreed = Some(agreed);
        self.reply(header, reply.len());
        self.outgoing.bytes.extend_from_slice(&reply);
        Ok(Outcome::Answered)
    }

    fn dma_map(
        &mut self,
        header: &Header,
        payload: &[u8],
        mut fds: Vec<OwnedFd>,
        device: &mut dyn PciDevice,
    ) -> Carried {
        let request = payload!(DmaMap, exactly payload);
        if fds.len() > 1 {
            return Err(Refused::invalid(format!(
                "DMA_MAP with {} descriptors, one is expected at most",
                fds.len()
            )));
        }
        let max = self.agreed.map_or(0, |agreed| agreed.max_dma_maps);
        let is_mapped_here = self.bus.maps.map(&request, fds.pop(), max)?;
        if is_mapped_here {
            self.bus.renew_memory();
            device.memory_changed(&mut self.bus);
        }
        self.reply(header, 0);
        Ok(Outcome::Answered)
    }

    fn dma_unmap(&mut self, payload: &[u8], device: &mut dyn PciDevice) -> Carried {
        let request = payload!(DmaUnmap, exactly payload);
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
                return Err(Refused::invalid(format!(
                    "DMA_UNMAP of {size:#x} bytes at {address:#x} with flags {flags:#x}: flags are 0, or \
                     {:#x} with address and size 0",
                    wire::DMA_UNMAP_ALL
                )));
            }
        };
        if !in_use.is_empty() {
            self.bus.renew_memory();
            device.memory_changed(&mut self.bus);
        }
        Ok(Outcome::Held(Held::Unmap {
            reply: request,
            in_use,
        }))
    }

    fn device_info(&mut self, header: &Header, payload: &[u8]) -> Carried {
        let request = payload!(DeviceInfo, exactly payload);
        check_room(request.argsz, DeviceInfo::BYTES)?;
        self.reply(header, DeviceInfo::BYTES);
        DeviceInfo {
            argsz: DeviceInfo::SIZE,
            flags: wire::DEVICE_RESET | wire::DEVICE_PCI,
            num_regions: NUM_REGIONS,
            num_irqs: NUM_IRQS,
        }
        .encode(&mut self.outgoing.bytes);
        Ok(Outcome::Answered)
    }

    fn region_info(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn PciDevice,
    ) -> Carried {
        let RegionInfo { argsz, index, .. } = payload!(RegionInfo, exactly payload);
        check_room(argsz, RegionInfo::BYTES)?;
        if index >= NUM_REGIONS {
            return Err(Refused::invalid(format!(
                "region {index}, there are {NUM_REGIONS}"
            )));
        }
        let size = device.region_bytes(index);
        self.reply(header, RegionInfo::BYTES);
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
        Ok(Outcome::Answered)
    }

    fn irq_info(&mut self, header: &Header, payload: &[u8]) -> Carried {
        let IrqInfo { argsz, index, .. } = payload!(IrqInfo, exactly payload);
        check_room(argsz, IrqInfo::BYTES)?;
        if index >= NUM_IRQS {
            return Err(Refused::invalid(format!(
                "interrupts of kind {index}, there are {NUM_IRQS} kinds"
            )));
        }
        if index == wire::IRQ_ERROR {
            // As for a device in the machine that is not PCI Express. (QEMU warns of one that has none.)
            let refused = Refused::invalid("no PCI Express, and so no errors of it");
            return Err(Refused {
                is_usual: true,
                ..refused
            });
        }
        self.reply(header, IrqInfo::BYTES);
        IrqInfo {
            argsz: IrqInfo::SIZE,
            flags: match index {
                wire::IRQ_INTX => wire::IRQ_EVENTFD | wire::IRQ_MASKABLE | wire::IRQ_AUTOMASKED,
                _ => 0,
            },
            index,
            count: irqs_of_kind(index),
        }
        .encode(&mut self.outgoing.bytes);
        Ok(Outcome::Answered)
    }
}
