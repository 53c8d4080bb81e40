//! A device for tests: plain registers, memory, and a few registers with functions.
//!
//! It has the IDs of the SCSI host adapter for guests without virtio, so that a monitor treats it as one.

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::io::Errno;
use virtqueue::GuestMemory;

use crate::config_space::{Bar, ConfigSpace, PciIdentity};
use crate::device::{DmaId, PciDevice, PciHost};
use crate::wire::CONFIG_REGION;

/// Bytes of registers, in BAR 0 and repeatedly in BAR 1.
const REGISTERS: usize = 256;
/// Bytes of memory in BAR 2.
const RAM: usize = 8192;

/// Any write: reads 16 bytes at the address in [`ADDRESS`] from mapped memory, into [`DATA`].
pub const MAPPED_READ: u64 = 0x59;
/// Any write: writes 4 bytes of [`DATA`] to the address in [`ADDRESS`] in mapped memory.
pub const MAPPED_WRITE: u64 = 0x5a;
/// While it is not 0, the device keeps a reference to the guest's memory at the time of the write.
pub const KEEP: u64 = 0x5b;
/// Any write: reads 16 bytes at the address in [`ADDRESS`] by a message, into [`DATA`].
pub const DMA_READ: u64 = 0x5c;
/// Any write: writes 4 bytes of [`DATA`] to the address in [`ADDRESS`] by a message.
pub const DMA_WRITE: u64 = 0x5d;
/// The level of the interrupt line is its lowest bit.
pub const LEVEL: u64 = 0x5e;
/// The errno of the last access to memory, 0 for success.
pub const RESULT: u64 = 0x5f;
/// An address of four bytes, little endian.
pub const ADDRESS: u64 = 0x60;
/// Sixteen bytes.
pub const DATA: u64 = 0x70;

/// The test device.
pub struct Scratch {
    config: ConfigSpace,
    registers: [u8; REGISTERS],
    ram: Vec<u8>,
    kept_memory: Option<Arc<GuestMemory>>,
    /// Registers with functions that were written, for the next turn.
    commands: VecDeque<u64>,
    reads: Vec<DmaId>,
    /// Accesses that have finished.
    pub finished: u64,
    /// Resets so far.
    pub resets: u64,
}

impl Default for Scratch {
    fn default() -> Self {
        let identity = PciIdentity {
            vendor: 0x1000,
            device: 0x0012,
            class: 0x01_0000,
            subsystem_vendor: 0x1000,
            subsystem: 0x1000,
            interrupt_pin: 1,
            ..PciIdentity::default()
        };
        let mut bars = [Bar::None; 6];
        bars[0] = Bar::Io { bytes: 256 };
        bars[1] = Bar::Memory { bytes: 0x400 };
        bars[2] = Bar::Memory { bytes: 0x2000 };
        let mut scratch = Scratch {
            config: ConfigSpace::new(&identity, bars),
            registers: [0; REGISTERS],
            ram: vec![0; RAM],
            kept_memory: None,
            commands: VecDeque::new(),
            reads: Vec::new(),
            finished: 0,
            resets: 0,
        };
        scratch.registers[0x18] = 0xff;
        scratch
    }
}

impl Scratch {
    /// The register at this offset.
    fn register(&mut self, register: u64) -> &mut u8 {
        &mut self.registers[usize::try_from(register).unwrap_or(0) % REGISTERS]
    }

    /// The address in the registers [`ADDRESS`].
    fn address_register(&mut self) -> u64 {
        (0..4).fold(0, |address, byte| {
            address | u64::from(*self.register(ADDRESS + byte)) << (8 * byte)
        })
    }

    /// The bytes in the registers [`DATA`].
    fn data_registers(&mut self) -> [u8; 16] {
        let mut data = [0; 16];
        for (byte, register) in data.iter_mut().zip(DATA..) {
            *byte = *self.register(register);
        }
        data
    }

    /// Records the result of an access to memory, with the data that were read, in registers.
    fn record_access_result(&mut self, result: Result<&[u8], Errno>) {
        self.finished += 1;
        let errno = result.err().map_or(0, Errno::raw_os_error);
        *self.register(RESULT) = u8::try_from(errno).unwrap_or(u8::MAX);
        for (byte, register) in result.unwrap_or(&[]).iter().zip(DATA..) {
            *self.register(register) = *byte;
        }
    }

    /// Sets the interrupt line to the level in the register [`LEVEL`].
    fn update_interrupt_line(&mut self, host: &mut dyn PciHost) {
        let level = *self.register(LEVEL) & 1 != 0;
        let level = self.config.set_interrupt_status_and_get_line(level);
        host.set_irq_level(level);
    }
}

impl PciDevice for Scratch {
    fn name(&self) -> &str {
        "scratch"
    }

    fn region_bytes(&self, region: u32) -> u64 {
        match region {
            0..=5 => self.config.bar_bytes(region as usize).into(),
            CONFIG_REGION => ConfigSpace::BYTES,
            _ => 0,
        }
    }

    /// Reads registers, memory or configuration space.
    fn read_region(&mut self, _: &mut dyn PciHost, region: u32, offset: u64, data: &mut [u8]) {
        match region {
            CONFIG_REGION => self.config.read(offset, data),
            2 => data
                .copy_from_slice(&self.ram[usize::try_from(offset).unwrap_or(RAM)..][..data.len()]),
            _ => {
                for (byte, register) in data.iter_mut().zip(offset..) {
                    *byte = *self.register(register);
                }
            }
        }
    }

    /// Writes registers, some of which queue a command, memory or configuration space.
    fn write_region(&mut self, host: &mut dyn PciHost, region: u32, offset: u64, data: &[u8]) {
        match region {
            CONFIG_REGION => self.config.store_writable_bits(offset, data),
            2 => self.ram[usize::try_from(offset).unwrap_or(RAM)..][..data.len()]
                .copy_from_slice(data),
            _ => {
                for (byte, register) in data.iter().zip(offset..) {
                    *self.register(register) = *byte;
                    match register % REGISTERS as u64 {
                        KEEP => {
                            self.kept_memory =
                                (*byte != 0).then(|| host.mapped_guest_memory().clone())
                        }
                        command @ (MAPPED_READ | MAPPED_WRITE | DMA_READ | DMA_WRITE) => {
                            self.commands.push_back(command)
                        }
                        _ => {}
                    }
                }
            }
        }
        self.update_interrupt_line(host);
    }

    fn reset(&mut self, host: &mut dyn PciHost) {
        self.config.reset();
        self.registers = Scratch::default().registers;
        self.commands.clear();
        self.reads.clear();
        self.resets += 1;
        self.update_interrupt_line(host);
    }

    fn is_reset_done(&self) -> bool {
        self.kept_memory.is_none()
    }

    fn on_memory_changed(&mut self, _: &mut dyn PciHost) {}

    /// Records the result of an access by message in registers.
    fn on_dma_done(&mut self, _: &mut dyn PciHost, id: DmaId, result: Result<Vec<u8>, Errno>) {
        let is_read = self.reads.contains(&id);
        let data = result.as_deref().map_err(|error| *error);
        self.record_access_result(data.map(|data| if is_read { data } else { &[] }));
        self.reads.retain(|read| *read != id);
    }

    /// Carries out the next command that was written to a register.
    fn do_pending_work(&mut self, host: &mut dyn PciHost) -> bool {
        match self.commands.pop_front() {
            Some(DMA_READ) => {
                let id = host.begin_dma_read_by_messages(self.address_register(), 16);
                self.reads.push(id);
            }
            Some(DMA_WRITE) => {
                let data = self.data_registers()[..4].to_vec();
                host.begin_dma_write_by_messages(self.address_register(), data);
            }
            Some(command) => {
                let mut data = self.data_registers();
                let done = match command {
                    MAPPED_READ => host
                        .mapped_guest_memory()
                        .read(self.address_register(), &mut data),
                    _ => host
                        .mapped_guest_memory()
                        .write(self.address_register(), &data[..4]),
                };
                self.record_access_result(done.then_some(&data[..]).ok_or(Errno::FAULT));
            }
            None => return false,
        }
        true
    }
}
