//! The PCI slot: a vfio-user front-end.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use bench::client::SharedMemory;
use bench::{Error, Result};
use lsi_driver::program::RAM;
use rustix::net::{SendFlags, send};
use test_support::vfio_user::connection::Connection;
use test_support::vfio_user::{Message, access, map};
use vfio_user::wire::{self, CONFIG_REGION, Version, command};

/// The regions of the chip's registers, and of its memory, and where they are mapped (see its manual, 4.1).
const REGISTERS: u32 = 1;
const MEMORY: u32 = 2;
const BASES: [(u64, u32); 3] = [(0x10, 0xc000), (0x14, 0xfe00_0000), (0x18, RAM)];

/// The command register: memory, I/O, bus master.
const COMMAND: u64 = 4;
const ENABLED: u16 = 7;

/// A device that is plugged in.
pub(crate) struct Slot(Connection);

impl Slot {
    /// What a monitor and its firmware do: agrees, shares `memory`, which is the guest's from address 0 on, and maps the chip.
    pub fn plug(stream: UnixStream, memory: &SharedMemory) -> Self {
        let slot = Slot(Connection::new(stream));
        let mut version = Vec::new();
        Version { major: 0, minor: 0 }.encode(&mut version);
        slot.0.call(command::VERSION, &version, &[]);
        let whole = map(0, memory.len as u64);
        slot.0.call(command::DMA_MAP, &whole, &[memory.fd()]);
        slot.0.call(command::DEVICE_RESET, &[], &[]);
        for (bar, base) in BASES {
            slot.write(CONFIG_REGION, bar, &base.to_le_bytes());
        }
        slot.write(CONFIG_REGION, COMMAND, &ENABLED.to_le_bytes());
        slot
    }

    /// Closed by a server that ends.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.socket()
    }

    /// Writes a register without waiting for it, as a monitor does for a guest's memory accesses.
    #[inline]
    pub fn post(&self, register: u8, value: &[u8]) -> Result<()> {
        let payload = access(REGISTERS, register.into(), count(value), value);
        let flags = wire::TYPE_COMMAND | wire::NO_REPLY;
        let message = Message::command(0, command::REGION_WRITE, flags, &payload).bytes();
        // Waits for room: the server may be behind.
        let sent = send(self.socket(), &message, SendFlags::NOSIGNAL);
        sent.map(drop).map_err(|_| Error::Gone)
    }

    /// Fills the chip's memory.
    pub fn load(&self, bytes: &[u8]) {
        self.write(MEMORY, 0, bytes);
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) {
        let payload = access(region, offset, count(data), data);
        self.0.call(command::REGION_WRITE, &payload, &[]);
    }
}

fn count(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
