//! The PCI slot: a vfio-user front-end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use bench::client::SharedMemory;
use bench::{Error, Result};
use lsi_driver::program::RAM;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendFlags, send};
use test_support::vfio_user::connection::Connection;
use test_support::vfio_user::{Message, access, map, set_irqs};
use vfio_user::wire::{self, CONFIG_REGION, RegionAccess, Version, command};

/// The regions of the chip's registers, and of its memory, and where they are mapped (see its manual, 4.1).
const REGISTERS: u32 = 1;
const MEMORY: u32 = 2;
const BASES: [(u64, u32); 3] = [(0x10, 0xc000), (0x14, 0xfe00_0000), (0x18, RAM)];

/// The command register: memory, I/O, bus master.
const COMMAND: u64 = 4;
const ENABLED: u16 = 7;

/// A device that is plugged in.
pub(crate) struct Slot {
    connection: Connection,
    trigger: OwnedFd,
    unmask: OwnedFd,
}

impl Slot {
    /// What a monitor and its firmware do: agrees, shares `memory`, which is the guest's from address 0 on, connects the interrupt
    /// as KVM has it, and maps the chip.
    pub fn plug(stream: UnixStream, memory: &SharedMemory) -> Result<Self> {
        let new = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map_err(Error::io("create an eventfd"))
        };
        let slot = Slot {
            connection: Connection::new(stream),
            trigger: new()?,
            unmask: new()?,
        };
        let call = |command, payload: &[u8], fds: &[BorrowedFd<'_>]| {
            slot.connection.call(command, payload, fds);
        };
        let mut version = Vec::new();
        Version { major: 0, minor: 0 }.encode(&mut version);
        call(command::VERSION, &version, &[]);
        let whole = map(0, memory.len() as u64);
        call(command::DMA_MAP, &whole, &[memory.fd()]);
        for (action, fd) in [
            (wire::IRQ_ACTION_TRIGGER, &slot.trigger),
            (wire::IRQ_ACTION_UNMASK, &slot.unmask),
        ] {
            let payload = set_irqs(wire::IRQ_INTX, wire::IRQ_DATA_EVENTFD | action, 1, &[]);
            call(command::DEVICE_SET_IRQS, &payload, &[fd.as_fd()]);
        }
        call(command::DEVICE_RESET, &[], &[]);
        for (bar, base) in BASES {
            slot.write(CONFIG_REGION, bar, &base.to_le_bytes());
        }
        slot.write(CONFIG_REGION, COMMAND, &ENABLED.to_le_bytes());
        Ok(slot)
    }

    /// Signalled when the interrupt line is raised. It is masked then, until [`Slot::end_of_interrupt`].
    pub fn trigger_fd(&self) -> BorrowedFd<'_> {
        self.trigger.as_fd()
    }

    /// Closed by a server that ends.
    pub fn socket(&self) -> Result<OwnedFd> {
        let socket = self.connection.socket().try_clone_to_owned();
        socket.map_err(Error::io("watch the server's socket"))
    }

    /// The interrupt has been served.
    pub fn end_of_interrupt(&self) {
        // The counter can only be full when the server has not looked for 2^64 - 1 of them.
        let _ = rustix::io::write(&self.unmask, &1u64.to_ne_bytes());
    }

    /// Reads a register: the guest waits for it.
    pub fn read8(&self, register: u8) -> u8 {
        let payload = access(REGISTERS, register.into(), 1, &[]);
        self.connection.call(command::REGION_READ, &payload, &[])[RegionAccess::BYTES]
    }

    /// Writes a register without waiting for it, as a monitor does for a guest's memory accesses.
    #[inline]
    pub fn post(&self, register: u8, value: &[u8]) -> Result<()> {
        let payload = access(REGISTERS, register.into(), count(value), value);
        let flags = wire::TYPE_COMMAND | wire::NO_REPLY;
        let message = Message::command(0, command::REGION_WRITE, flags, &payload);
        // Waits for room: the server may be behind.
        let sent = send(
            self.connection.socket(),
            &message.bytes(),
            SendFlags::NOSIGNAL,
        );
        sent.map(drop).map_err(|_| Error::Gone)
    }

    /// Fills the chip's memory.
    pub fn load(&self, bytes: &[u8]) {
        self.write(MEMORY, 0, bytes);
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) {
        let payload = access(region, offset, count(data), data);
        self.connection.call(command::REGION_WRITE, &payload, &[]);
    }
}

fn count(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
