//! A vhost-user-blk server that has next to nothing of what is optional (no event index, no
//! indirect descriptors, no acknowledgements, one queue), and that may do its work badly.
//!
//! It reaches the guest's memory by reading and writing its descriptor, so it needs no mapping.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs::File, io::IoSliceMut, io::Write};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// Every tenth request, if it is a write, is stored with one bit the other way.
    FlippedBit,
    /// Every tenth request, if it is a write, is not stored.
    LostWrite,
    /// Every tenth request, if it is a read, gives what was last written, wherever that was.
    MixedUp,
    /// Everything fails.
    Error,
}

const DISK_BYTES: usize = 1 << 20;
const EVERY: u32 = 10;

const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const FLUSH: u64 = 1 << 9;
const PROTOCOL_CONFIG: u64 = 1 << 9;

/// The running device; ends when dropped.
pub struct Device {
    socket: PathBuf,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Device {
    pub fn start(flaw: Flaw) -> Device {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => Connection::new(stream, flaw).serve(&end),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Device {
            socket,
            over,
            thread: Some(thread),
            _folder: folder,
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        // A second panic would hide the first.
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

struct Connection {
    stream: UnixStream,
    flaw: Flaw,
    disk: Vec<u8>,
    last_write: Option<usize>,
    requests: u32,
    memory: Option<File>,
    user_addr: u64,
    size: u16,
    desc: u64,
    used: u64,
    avail: u64,
    next: u16,
    call: Option<File>,
    started: bool,
}

impl Connection {
    fn new(stream: UnixStream, flaw: Flaw) -> Connection {
        stream.set_nonblocking(true).unwrap();
        Connection {
            stream,
            flaw,
            disk: vec![0; DISK_BYTES],
            last_write: None,
            requests: 0,
            memory: None,
            user_addr: 0,
            size: 0,
            desc: 0,
            used: 0,
            avail: 0,
            next: 0,
            call: None,
            started: false,
        }
    }

    /// Until the front-end leaves.
    fn serve(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if !self.message() {
                return;
            }
            if self.started {
                self.queue();
            }
            std::thread::yield_now();
        }
    }

    /// Handles a message, if there is one; false when the front-end is gone.
    fn message(&mut self) -> bool {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut header)];
        let got = match recvmsg(&self.stream, parts, &mut ancillary, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => return true,
            got => got.map_or(0, |got| got.bytes),
        };
        if got == 0 {
            return false;
        }
        let fd = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        assert_eq!(got, header.len());
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; usize::try_from(word(8)).unwrap()];
        self.stream.set_nonblocking(false).unwrap();
        self.stream.read_exact(&mut payload).unwrap();
        self.stream.set_nonblocking(true).unwrap();
        self.handle(word(0), &payload, fd);
        true
    }

    fn handle(&mut self, request: u32, payload: &[u8], fd: Option<OwnedFd>) {
        let u32_at = |at: usize| u32::from_ne_bytes(payload[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap());
        match request {
            1 => self.reply(1, &(VERSION_1 | PROTOCOL_FEATURES | FLUSH).to_ne_bytes()),
            2 => assert_eq!(u64_at(0), VERSION_1 | PROTOCOL_FEATURES | FLUSH),
            15 => self.reply(15, &PROTOCOL_CONFIG.to_ne_bytes()),
            16 => assert_eq!(u64_at(0), PROTOCOL_CONFIG),
            24 => {
                let mut config = payload.to_vec();
                let sectors = (DISK_BYTES / 512) as u64;
                config[12..20].copy_from_slice(&sectors.to_le_bytes());
                self.reply(24, &config);
            }
            5 => {
                assert_eq!((u32_at(0), u64_at(8), u64_at(32)), (1, 0, 0), "one region");
                self.user_addr = u64_at(24);
                self.memory = fd.map(File::from);
            }
            8 => self.size = u16::try_from(u32_at(4)).unwrap(),
            9 => {
                let offset = |at| u64_at(at) - self.user_addr;
                (self.desc, self.used, self.avail) = (offset(8), offset(16), offset(24));
            }
            10 => self.next = u16::try_from(u32_at(4)).unwrap(),
            11 => {
                self.started = false;
                let base = [0u32.to_ne_bytes(), u32::from(self.next).to_ne_bytes()].concat();
                self.reply(11, &base);
            }
            12 => self.started = true,
            13 => self.call = fd.map(File::from),
            3 | 18 => {}
            other => panic!("message {other} was not offered"),
        }
    }

    fn reply(&mut self, request: u32, payload: &[u8]) {
        let mut message = Vec::new();
        let len = u32::try_from(payload.len()).unwrap();
        for word in [request, 1 | 4, len] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(payload);
        self.stream.write_all(&message).unwrap();
    }

    fn bytes<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let memory = self.memory.as_ref().unwrap();
        memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let memory = self.memory.as_ref().unwrap();
        memory.write_all_at(bytes, at).unwrap();
    }

    fn u16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn queue(&mut self) {
        let available = self.u16(self.avail + 2);
        if available == self.next {
            return;
        }
        while self.next != available {
            let entry = u64::from(self.next % self.size);
            let head = self.u16(self.avail + 4 + 2 * entry);
            self.request(head);
            let used = [u32::from(head).to_le_bytes(), 1u32.to_le_bytes()].concat();
            self.put(self.used + 4 + 8 * entry, &used);
            self.next = self.next.wrapping_add(1);
        }
        self.put(self.used + 2, &self.next.to_le_bytes());
        if self.u16(self.avail) & 1 == 0 {
            let mut call = self.call.as_ref().unwrap();
            call.write_all(&1u64.to_ne_bytes()).unwrap();
        }
    }

    fn request(&mut self, head: u16) {
        let mut chain = Vec::new();
        let mut index = head;
        loop {
            let desc: [u8; 16] = self.bytes(self.desc + 16 * u64::from(index));
            let addr = u64::from_le_bytes(desc[..8].try_into().unwrap());
            let len = u32::from_le_bytes(desc[8..12].try_into().unwrap());
            let flags = u16::from_le_bytes(desc[12..14].try_into().unwrap());
            chain.push((addr, usize::try_from(len).unwrap()));
            if flags & 1 == 0 {
                break;
            }
            index = u16::from_le_bytes(desc[14..].try_into().unwrap());
        }
        let (header, status) = (chain[0].0, chain[chain.len() - 1].0);
        let kind = u32::from_le_bytes(self.bytes(header));
        let sector = u64::from_le_bytes(self.bytes(header + 8));
        let mut at = usize::try_from(sector).unwrap() * 512;
        for &(addr, len) in &chain[1..chain.len() - 1] {
            self.requests += 1;
            let badly = self.requests.is_multiple_of(EVERY);
            if kind == 1 {
                let mut data = vec![0; len];
                let memory = self.memory.as_ref().unwrap();
                memory.read_exact_at(&mut data, addr).unwrap();
                if badly && self.flaw == Flaw::FlippedBit {
                    data[len / 2] ^= 0x10;
                }
                if !(badly && self.flaw == Flaw::LostWrite) {
                    self.disk[at..at + len].copy_from_slice(&data);
                }
                self.last_write = Some(at);
            } else {
                let from = match self.last_write {
                    Some(other) if badly && self.flaw == Flaw::MixedUp => other,
                    _ => at,
                };
                let memory = self.memory.as_ref().unwrap();
                memory
                    .write_all_at(&self.disk[from..from + len], addr)
                    .unwrap();
            }
            at += len;
        }
        if kind == 4 {
            assert_eq!(chain.len(), 2, "a flush has no data");
        }
        self.put(status, &[u8::from(self.flaw == Flaw::Error)]);
    }
}
