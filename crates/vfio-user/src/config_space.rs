//! The configuration space of a PCI device: a header of type 0 without capabilities.
//!
//! It has 256 bytes, each bit of which is writable or read-only. The guest finds a BAR's size by writing ones: the low bits
//! stay zero. Section numbers are those of the PCI Local Bus Specification 3.0.

const BYTES: usize = 256;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CACHE_LINE_SIZE: usize = 0x0c;
const LATENCY_TIMER: usize = 0x0d;
const BARS: usize = 0x10;
const INTERRUPT_LINE: usize = 0x3c;

const COMMAND_IO: u16 = 1;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
/// 6.2.2: these include memory write and invalidate, parity errors and SERR#, which have no effect.
const COMMAND_WRITABLE: u16 = COMMAND_IO
    | COMMAND_MEMORY
    | COMMAND_BUS_MASTER
    | 1 << 4
    | 1 << 6
    | 1 << 8
    | COMMAND_INTX_DISABLE;

/// 6.2.3: the device asserts its interrupt, even if INTx is disabled.
const STATUS_INTERRUPT: u8 = 1 << 3;

/// Identification of a device (6.2.1, 6.2.4).
#[derive(Clone, Copy, Debug, Default)]
pub struct PciIdentity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Revision ID.
    pub revision: u8,
    /// Class, subclass and programming interface, in 24 bits.
    pub class: u32,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// 0: no interrupts, 1: INTA#.
    pub interrupt_pin: u8,
    /// Length of its bursts, in units of 250 ns.
    pub min_grant: u8,
    /// How often it needs the bus, in units of 250 ns.
    pub max_latency: u8,
    /// Initial value of the latency timer.
    pub latency_timer: u8,
}

/// A base address register (6.2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bar {
    /// No region.
    #[default]
    None,
    /// I/O ports.
    Io {
        /// Their number: a power of two, 4 to 256.
        bytes: u32,
    },
    /// Memory below 4 GiB.
    Memory {
        /// Its size: a power of two, 16 at least.
        bytes: u32,
    },
}

impl Bar {
    /// Its size.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Bar::None => 0,
            Bar::Io { bytes } | Bar::Memory { bytes } => bytes,
        }
    }
}

/// The contents of a configuration space.
pub struct ConfigSpace {
    bytes: [u8; BYTES],
    at_reset: [u8; BYTES],
    writable: [u8; BYTES],
    bars: [Bar; 6],
}

impl ConfigSpace {
    /// Its size.
    pub const BYTES: u64 = BYTES as u64;

    /// The configuration space of a device after power-on.
    ///
    /// # Panics
    /// When a BAR's size is invalid.
    #[must_use]
    pub fn new(identity: &PciIdentity, bars: [Bar; 6]) -> Self {
        let mut at_reset = [0; BYTES];
        let mut put_bytes = |offset: usize, bytes: &[u8]| {
            at_reset[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put_bytes(0x00, &identity.vendor.to_le_bytes());
        put_bytes(0x02, &identity.device.to_le_bytes());
        put_bytes(0x08, &[identity.revision]);
        put_bytes(0x09, &identity.class.to_le_bytes()[..3]);
        put_bytes(LATENCY_TIMER, &[identity.latency_timer]);
        put_bytes(0x2c, &identity.subsystem_vendor.to_le_bytes());
        put_bytes(0x2e, &identity.subsystem.to_le_bytes());
        let last = [
            identity.interrupt_pin,
            identity.min_grant,
            identity.max_latency,
        ];
        put_bytes(INTERRUPT_LINE + 1, &last);
        let mut writable = [0; BYTES];
        writable[COMMAND..STATUS].copy_from_slice(&COMMAND_WRITABLE.to_le_bytes());
        writable[CACHE_LINE_SIZE] = 0xff;
        writable[LATENCY_TIMER] = 0xff;
        writable[INTERRUPT_LINE] = 0xff;
        for (index, bar) in bars.iter().enumerate() {
            let (fixed, allowed) = match bar {
                Bar::None => continue,
                Bar::Io { .. } => (1, 4..=256),
                Bar::Memory { .. } => (0, 16..=1 << 31),
            };
            let bytes = bar.bytes();
            assert!(
                bytes.is_power_of_two() && allowed.contains(&bytes),
                "{bar:?}: a power of two in {allowed:?} is expected"
            );
            let at = BARS + 4 * index;
            at_reset[at] = fixed;
            writable[at..at + 4].copy_from_slice(&(!(bytes - 1)).to_le_bytes());
        }
        ConfigSpace {
            bytes: at_reset,
            at_reset,
            writable,
            bars,
        }
    }

    /// Reads bytes; those behind the end are zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let from = &self.bytes[usize::try_from(offset).map_or(BYTES, |offset| offset.min(BYTES))..];
        let len = data.len().min(from.len());
        data[..len].copy_from_slice(&from[..len]);
    }

    /// Stores the writable bits of these bytes. Has no other effect: the caller acts on the registers.
    pub fn store_writable_bits(&mut self, offset: u64, data: &[u8]) {
        let Ok(offset) = usize::try_from(offset) else {
            return;
        };
        for (at, byte) in (offset..BYTES).zip(data) {
            let writable = self.writable[at];
            self.bytes[at] = self.bytes[at] & !writable | byte & writable;
        }
    }

    /// Restores the state after power-on.
    pub fn reset(&mut self) {
        self.bytes = self.at_reset;
    }

    /// The command register.
    fn command_register(&self) -> u16 {
        u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]])
    }

    /// The address of a BAR; `None` while the guest has disabled it.
    #[must_use]
    pub fn bar_address_if_enabled(&self, index: usize) -> Option<u32> {
        let needed = match self.bars.get(index)? {
            Bar::None => return None,
            Bar::Io { .. } => COMMAND_IO,
            Bar::Memory { .. } => COMMAND_MEMORY,
        };
        if self.command_register() & needed == 0 {
            return None;
        }
        let at = BARS + 4 * index;
        let address = u32::from_le_bytes(self.bytes[at..at + 4].try_into().ok()?);
        Some(address & !(self.bars[index].bytes() - 1))
    }

    /// The size of a BAR, 0 if there is none.
    #[must_use]
    pub fn bar_bytes(&self, index: usize) -> u32 {
        self.bars.get(index).map_or(0, |bar| bar.bytes())
    }

    /// Whether the device may access memory.
    #[must_use]
    pub fn is_bus_master(&self) -> bool {
        self.command_register() & COMMAND_BUS_MASTER != 0
    }

    /// Sets the interrupt bit of the status register. Returns the level of the line: low while the guest disables INTx.
    pub fn set_interrupt_status_and_get_line(&mut self, level: bool) -> bool {
        self.bytes[STATUS] &= !STATUS_INTERRUPT;
        self.bytes[STATUS] |= u8::from(level) * STATUS_INTERRUPT;
        level && self.command_register() & COMMAND_INTX_DISABLE == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration space of an LSI 53C895A, with an I/O and two memory BARs.
    fn config() -> ConfigSpace {
        let identity = PciIdentity {
            vendor: 0x1000,
            device: 0x0012,
            class: 0x01_0000,
            subsystem: 0x1000,
            interrupt_pin: 1,
            latency_timer: 0xff,
            ..PciIdentity::default()
        };
        let mut bars = [Bar::None; 6];
        bars[0] = Bar::Io { bytes: 256 };
        bars[1] = Bar::Memory { bytes: 0x400 };
        bars[2] = Bar::Memory { bytes: 0x2000 };
        ConfigSpace::new(&identity, bars)
    }

    fn dword(config: &ConfigSpace, offset: u64) -> u32 {
        let mut data = [0; 4];
        config.read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    fn put(config: &mut ConfigSpace, offset: u64, dword: u32) {
        config.store_writable_bits(offset, &dword.to_le_bytes());
    }

    #[test]
    fn the_identity_cannot_be_written_and_bars_show_their_sizes() {
        let mut config = config();
        for (offset, expected) in [
            (0, 0x0012_1000),
            (8, 0x0100_0000),
            (0x10, 0xffff_ff01),
            (0x14, 0xffff_fc00),
            (0x18, 0xffff_e000),
            (0x1c, 0),
            (0x2c, 0x1000_0000),
            // No ROM, no capabilities.
            (0x30, 0),
            (0x34, 0),
            (0x3c, 0x01ff),
        ] {
            put(&mut config, offset, u32::MAX);
            assert_eq!(dword(&config, offset), expected, "{offset:#x}");
        }
        put(&mut config, 0x10, 0xc000);
        put(&mut config, 0x14, 0xfe00_0000);
        for (command, expected) in [
            (0, [None; 4]),
            (COMMAND_IO, [Some(0xc000), None, None, None]),
            (COMMAND_MEMORY, [None, Some(0xfe00_0000), None, None]),
        ] {
            put(&mut config, 4, command.into());
            let addresses = [0, 1, 3, 6].map(|bar| config.bar_address_if_enabled(bar));
            assert_eq!(addresses, expected);
        }
        assert_eq!((config.bar_bytes(2), config.bar_bytes(3)), (0x2000, 0));
    }

    #[test]
    fn byte_and_word_writes_change_what_they_cover() {
        let mut config = config();
        config.store_writable_bits(0x15, &[0xfe, 0x12]);
        assert_eq!(dword(&config, 0x14), 0x0012_fc00);
        config.store_writable_bits(0x3c, &[11, 9, 9, 9]);
        assert_eq!(dword(&config, 0x3c), 0x010b);
        config.store_writable_bits(0xff, &[1, 2, 3]);
        config.store_writable_bits(u64::MAX, &[1]);
        let mut data = [9; 4];
        config.read(0xfe, &mut data);
        assert_eq!(data, [0; 4]);
        config.read(u64::MAX, &mut data);
    }

    #[test]
    fn only_defined_bits_of_the_command_register_are_writable() {
        let mut config = config();
        assert!(!config.is_bus_master());
        put(&mut config, 4, u32::MAX);
        assert_eq!(dword(&config, 4), 0x0557);
        assert!(config.is_bus_master());
        assert!(!config.set_interrupt_status_and_get_line(true), "held down");
        assert_eq!(dword(&config, 4), 0x0008_0557);
        put(&mut config, 4, 7);
        assert!(config.set_interrupt_status_and_get_line(true));
        assert!(!config.set_interrupt_status_and_get_line(false));
        assert_eq!(dword(&config, 4), 7);
        config.reset();
        assert_eq!(dword(&config, 4), 0);
        assert_eq!(dword(&config, 0xc), 0xff00);
    }
}
