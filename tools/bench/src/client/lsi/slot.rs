//! The PCI slot: a vfio-user front-end.

use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lsi_driver::program::RAM;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfio_user::wire::{
    self, CONFIG_REGION, DmaMap, Header, RegionAccess, SetIrqs, Version, command,
};

use crate::client::SharedMemory;
use crate::error::{Error, Result};

/// A server that does not answer for this long will not.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The regions of the chip's registers, and of its memory, and where they are mapped (see its manual, 4.1).
const REGISTERS: u32 = 1;
const MEMORY: u32 = 2;
const BASES: [(u64, u32); 3] = [(0x10, 0xc000), (0x14, 0xfe00_0000), (0x18, RAM)];

/// The command register: memory, I/O, bus master.
const COMMAND: u64 = 4;
const ENABLED: u16 = 7;

/// Of the longest command that is sent often: a write of a register.
const WRITE_BYTES: usize = Header::BYTES + RegionAccess::BYTES + 4;

/// A device that is plugged in.
pub struct Slot {
    stream: UnixStream,
    trigger: OwnedFd,
    unmask: OwnedFd,
    message: Vec<u8>,
}

impl Slot {
    /// What a monitor and its firmware do: agrees, shares `memory`, which is the guest's from address 0 on, connects the interrupt
    /// as KVM has it, and maps the chip.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the server refuses something; [`Error::Gone`]; [`Error::Io`].
    pub fn plug(stream: UnixStream, memory: &SharedMemory) -> Result<Self> {
        let limited = stream
            .set_read_timeout(Some(ANSWER_LIMIT))
            .and_then(|()| stream.set_write_timeout(Some(ANSWER_LIMIT)));
        limited.map_err(Error::io("limit a socket's waiting time"))?;
        let new = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map_err(Error::io("create an eventfd"))
        };
        let mut slot = Slot {
            stream,
            trigger: new()?,
            unmask: new()?,
            message: Vec::with_capacity(WRITE_BYTES),
        };
        let mut payload = Vec::new();
        Version { major: 0, minor: 0 }.encode(&mut payload);
        slot.call(command::VERSION, &payload, None)?;
        payload.clear();
        DmaMap {
            argsz: DmaMap::SIZE,
            flags: wire::DMA_READ_ALLOWED | wire::DMA_WRITE_ALLOWED,
            offset: 0,
            address: 0,
            size: memory.len() as u64,
        }
        .encode(&mut payload);
        slot.call(command::DMA_MAP, &payload, Some(memory.fd()))?;
        for (action, unmasks) in [
            (wire::IRQ_ACTION_TRIGGER, false),
            (wire::IRQ_ACTION_UNMASK, true),
        ] {
            payload.clear();
            SetIrqs {
                argsz: SetIrqs::SIZE,
                flags: wire::IRQ_DATA_EVENTFD | action,
                index: wire::IRQ_INTX,
                start: 0,
                count: 1,
            }
            .encode(&mut payload);
            let fd = if unmasks { &slot.unmask } else { &slot.trigger };
            let fd = fd.try_clone().map_err(Error::io("share an eventfd"))?;
            slot.call(command::DEVICE_SET_IRQS, &payload, Some(fd.as_fd()))?;
        }
        slot.call(command::DEVICE_RESET, &[], None)?;
        for (bar, base) in BASES {
            slot.write(CONFIG_REGION, bar, &base.to_le_bytes())?;
        }
        slot.write(CONFIG_REGION, COMMAND, &ENABLED.to_le_bytes())?;
        Ok(slot)
    }

    /// Signalled when the interrupt line is raised. It is masked then, until [`Slot::end_of_interrupt`].
    #[must_use]
    pub fn trigger_fd(&self) -> BorrowedFd<'_> {
        self.trigger.as_fd()
    }

    /// Enables the interrupt for its completion.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn socket(&self) -> Result<UnixStream> {
        self.stream
            .try_clone()
            .map_err(Error::io("watch the server's socket"))
    }

    /// The interrupt has been served.
    pub fn end_of_interrupt(&self) {
        // The counter can only be full when the server has not looked for 2^64 - 1 of them.
        let _ = rustix::io::write(&self.unmask, &1u64.to_ne_bytes());
    }

    /// Reads a register: the guest waits for it.
    ///
    /// # Errors
    /// As for [`Slot::plug`].
    pub fn read8(&mut self, register: u8) -> Result<u8> {
        let mut payload = Vec::with_capacity(RegionAccess::BYTES);
        access(REGISTERS, register.into(), 1).encode(&mut payload);
        let reply = self.call(command::REGION_READ, &payload, None)?;
        reply.get(RegionAccess::BYTES).copied().ok_or_else(|| {
            Error::Protocol("the server's answer to a read of a register is too short".to_owned())
        })
    }

    /// Writes a register without waiting for it, as a monitor does for a guest's memory accesses.
    ///
    /// # Errors
    /// As for [`Slot::plug`].
    #[inline]
    pub fn post(&mut self, register: u8, value: &[u8]) -> Result<()> {
        let count = u32::try_from(value.len()).unwrap_or(0);
        self.message.clear();
        let header = Header {
            id: 0,
            command: command::REGION_WRITE,
            size: Header::SIZE + RegionAccess::SIZE + count,
            flags: wire::TYPE_COMMAND | wire::NO_REPLY,
            errno: 0,
        };
        header.encode(&mut self.message);
        access(REGISTERS, register.into(), count).encode(&mut self.message);
        self.message.extend_from_slice(value);
        let sent = rustix::net::send(&self.stream, &self.message, SendFlags::NOSIGNAL);
        self.whole(sent, self.message.len())
    }

    /// Fills the chip's memory.
    ///
    /// # Errors
    /// As for [`Slot::plug`].
    pub fn load(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(MEMORY, 0, bytes)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        let mut payload = Vec::new();
        let count = u32::try_from(data.len()).unwrap_or(0);
        access(region, offset, count).encode(&mut payload);
        payload.extend_from_slice(data);
        self.call(command::REGION_WRITE, &payload, None).map(drop)
    }

    fn whole(&self, sent: rustix::io::Result<usize>, bytes: usize) -> Result<()> {
        match sent {
            Ok(sent) if sent == bytes => Ok(()),
            // A blocking stream takes a message as short as ours whole, or has failed.
            Ok(_) => Err(Error::Protocol("a message was cut off".to_owned())),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(Error::Gone),
            Err(errno) => Err(Error::io("send a message to the server")(errno)),
        }
    }

    /// Sends a command and waits for its reply.
    fn call(
        &mut self,
        command: u16,
        payload: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<u8>> {
        let mut header = Vec::with_capacity(Header::BYTES);
        Header {
            id: command,
            command,
            size: Header::SIZE + u32::try_from(payload.len()).unwrap_or(0),
            flags: wire::TYPE_COMMAND,
            errno: 0,
        }
        .encode(&mut header);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            // There is space for the one that there is.
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed);
        }
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL);
        self.whole(sent, header.len() + payload.len())?;
        let mut header = [0; Header::BYTES];
        self.receive(&mut header)?;
        let Some(header) = Header::decode(&header).filter(|header| header.command == command)
        else {
            return Err(Error::Protocol(format!(
                "what the server sent is no answer to command {command}"
            )));
        };
        if header.flags & wire::ERROR != 0 {
            return Err(Error::Protocol(format!(
                "the server refused command {command}: {}",
                std::io::Error::from_raw_os_error(header.errno.cast_signed())
            )));
        }
        let mut reply = vec![0; (header.size as usize).saturating_sub(Header::BYTES)];
        self.receive(&mut reply)?;
        Ok(reply)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.stream
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Error::Gone,
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Protocol(format!(
                    "no answer within {ANSWER_LIMIT:?}: does another front-end use this adapter?"
                )),
                _ => Error::io("wait for the server's answer")(error),
            })
    }
}

fn access(region: u32, offset: u64, count: u32) -> RegionAccess {
    RegionAccess {
        offset,
        region,
        count,
    }
}
