//! A computer whose PCI slot is served by the program.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use lsi53c895a::Bars;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use vfio_user::wire::{self, DmaMap, Header, RegionAccess, SetIrqs, command};

use crate::assemble::Program;
pub use crate::offsets::*;
use crate::process::STUCK_AFTER;

pub const BARS: Bars = Bars {
    io: 0xc000,
    registers: 0xfe00_0000,
    ram: 0xfe01_0000,
};

pub const MEMORY: usize = 4 << 20;

const CONFIG: u32 = 7;

pub struct Machine {
    socket: UnixStream,
    host: *mut u8,
    memory: OwnedFd,
    trigger: OwnedFd,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: mapped by `plug`, and nobody else has it.
        unsafe { munmap(self.host.cast(), MEMORY) }.unwrap();
    }
}

impl Machine {
    /// Plugs the device in, as a monitor and its firmware do.
    pub fn plug(path: &Path) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, MEMORY as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping.
        let host = unsafe { mmap(nowhere, MEMORY, access, MapFlags::SHARED, &memory, 0) };
        let machine = Machine {
            socket,
            host: host.unwrap().cast(),
            trigger: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            memory: memory.try_clone().unwrap(),
        };
        machine.call(command::VERSION, &[0; 4], &[]);
        let mut map = Vec::new();
        DmaMap {
            argsz: DmaMap::SIZE,
            flags: wire::DMA_READ_ALLOWED | wire::DMA_WRITE_ALLOWED,
            offset: 0,
            address: 0,
            size: MEMORY as u64,
        }
        .encode(&mut map);
        machine.call(command::DMA_MAP, &map, &[memory.as_fd()]);
        let trigger = wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER;
        machine.set_irqs(trigger, &[machine.trigger.as_fd()]);
        machine.call(command::DEVICE_RESET, &[], &[]);
        for (offset, base) in [
            (0x10, BARS.io),
            (0x14, BARS.registers),
            (0x18, BARS.ram),
            (4, 7),
        ] {
            machine.write(CONFIG, offset, &base.to_le_bytes());
        }
        machine
    }

    fn set_irqs(&self, flags: u32, fds: &[BorrowedFd<'_>]) {
        let mut payload = Vec::new();
        SetIrqs {
            argsz: SetIrqs::SIZE,
            flags,
            index: wire::IRQ_INTX,
            start: 0,
            count: 1,
        }
        .encode(&mut payload);
        self.call(command::DEVICE_SET_IRQS, &payload, fds);
    }

    pub fn call(&self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Header {
            id: 1,
            command,
            size: Header::SIZE + payload.len() as u32,
            flags: wire::TYPE_COMMAND,
            errno: 0,
        }
        .encode(&mut bytes);
        bytes.extend_from_slice(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let slices = [IoSlice::new(&bytes)];
        let sent = sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()));
        let mut header = [0; Header::BYTES];
        (&self.socket).read_exact(&mut header).unwrap();
        let header = Header::decode(&header).unwrap();
        let expected = (command, wire::TYPE_REPLY, 0);
        assert_eq!((header.command, header.flags, header.errno), expected);
        let mut reply = vec![0; header.size as usize - Header::BYTES];
        (&self.socket).read_exact(&mut reply).unwrap();
        reply
    }

    fn read(&self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let access = RegionAccess {
            offset,
            region,
            count,
        };
        let mut payload = Vec::new();
        access.encode(&mut payload);
        self.call(command::REGION_READ, &payload, &[])
            .split_off(RegionAccess::BYTES)
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) {
        let access = RegionAccess {
            offset,
            region,
            count: data.len() as u32,
        };
        let mut payload = Vec::new();
        access.encode(&mut payload);
        payload.extend_from_slice(data);
        self.call(command::REGION_WRITE, &payload, &[]);
    }

    /// What is behind its memory.
    pub fn memory(&self) -> &OwnedFd {
        &self.memory
    }

    /// Says this, whatever it is, and listens to no answer. False: the program does not take it, now or any more.
    pub fn say(&self, bytes: &[u8]) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&self.socket, bytes, flags) == Ok(bytes.len())
    }

    /// Whether the program makes room for more, within the time that it usually takes.
    pub fn may_say_more(&self) -> bool {
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000_000,
        };
        let fds = &mut [PollFd::new(&self.socket, PollFlags::OUT)];
        poll(fds, Some(&soon)) == Ok(1)
    }

    /// Waits for the line to tell something, and lets it tell more.
    pub fn interrupted(&self) {
        let patience = Timespec {
            tv_sec: STUCK_AFTER.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let fds = &mut [PollFd::new(&self.trigger, PollFlags::IN)];
        let told = poll(fds, Some(&patience)).unwrap() == 1;
        if !told {
            let bytes = [ISTAT0, ISTAT1, DSTAT, SIST0, SIST1].map(|register| self.read8(register));
            let words = [DSP, DSPS].map(|register| self.read32(register));
            panic!(
                "no interrupt: ISTAT0, ISTAT1, DSTAT, SIST0, SIST1 {bytes:x?}; DSP, DSPS {words:x?}"
            );
        }
        rustix::io::read(&self.trigger, &mut [0; 8]).unwrap();
    }

    /// After an interrupt was dealt with.
    pub fn unmask(&self) {
        self.set_irqs(wire::IRQ_DATA_NONE | wire::IRQ_ACTION_UNMASK, &[]);
    }

    /// Whether the program has hung up.
    pub fn is_hung_up(&self) -> bool {
        matches!((&self.socket).read(&mut [0]), Ok(0) | Err(_))
    }

    pub fn irq_level(&self) -> bool {
        self.read(CONFIG, 6, 1)[0] & 8 != 0
    }

    pub fn read8(&self, register: u8) -> u8 {
        self.read(0, register.into(), 1)[0]
    }

    pub fn read32(&self, register: u8) -> u32 {
        u32::from_le_bytes(self.read(1, register.into(), 4).try_into().unwrap())
    }

    pub fn write8(&mut self, register: u8, value: u8) {
        self.write(0, register.into(), &[value]);
    }

    pub fn write32(&mut self, register: u8, value: u32) {
        self.write(1, register.into(), &value.to_le_bytes());
    }

    pub fn poke(&mut self, addr: u32, bytes: &[u8]) {
        if let Some(offset) = addr.checked_sub(BARS.ram) {
            return self.write(2, offset.into(), bytes);
        }
        assert!(addr as usize + bytes.len() <= MEMORY);
        // SAFETY: inside of the mapping, and nobody has a reference to it.
        unsafe {
            let to = self.host.add(addr as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    pub fn poke32(&mut self, addr: u32, value: u32) {
        self.poke(addr, &value.to_le_bytes());
    }

    pub fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(addr as usize + len <= MEMORY);
        // SAFETY: inside of the mapping, and nobody has a reference to it.
        unsafe {
            let from = self.host.add(addr as usize);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
        }
        bytes
    }

    pub fn peek32(&self, addr: u32) -> u32 {
        u32::from_le_bytes(self.peek(addr, 4).try_into().unwrap())
    }

    pub fn start(&mut self, program: &Program, base: u32) {
        self.poke(base, &program.bytes());
        self.write32(DSP, base);
    }

    /// The program does that by itself.
    pub fn go(&mut self) {}
}
