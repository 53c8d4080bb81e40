//! A disk one layer below `blkio`: descriptor chains of any shape through `virtio-driver`.
//!
//! `blkio` never sends a write to a read-only disk, an unknown request type, a chain in several
//! pieces or a chain that is broken, and it chooses the ring's features itself. This client sends
//! any request, one at a time; for load there is [`crate::client`].

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use virtio_driver::virtqueue::{Virtqueue, VirtqueueLayout};
use virtio_driver::{
    QueueNotifier, VhostUser, VirtioBlkConfig, VirtioBlkFeatureFlags, VirtioFeatureFlags,
    VirtioTransport, iovec,
};

use crate::memory::{Arena, Span};

/// Request types (virtio 1.2, section 5.2.6).
pub mod kind {
    /// Device to memory.
    pub const IN: u32 = 0;
    /// Memory to device.
    pub const OUT: u32 = 1;
    /// Makes completed writes last.
    pub const FLUSH: u32 = 4;
    /// The serial number, 20 bytes.
    pub const GET_ID: u32 = 8;
    /// Gives sectors back.
    pub const DISCARD: u32 = 11;
    /// Zeroes sectors.
    pub const WRITE_ZEROES: u32 = 13;
}

/// `VIRTIO_BLK_S_OK`.
pub const OK: u8 = 0;
/// `VIRTIO_BLK_S_IOERR`.
pub const IOERR: u8 = 1;
/// `VIRTIO_BLK_S_UNSUPP`.
pub const UNSUPP: u8 = 2;
/// What the status byte holds until the device writes it.
const UNWRITTEN: u8 = 0xee;

/// The feature bits that this client can use beside those of the ring.
pub const DEVICE_FEATURES: u64 = VirtioBlkFeatureFlags::all().bits();
/// `VIRTIO_F_VERSION_1`, without which nothing here works.
pub const VERSION_1: u64 = VirtioFeatureFlags::VERSION_1.bits();
/// `VIRTIO_F_EVENT_IDX`.
pub const EVENT_IDX: u64 = VirtioFeatureFlags::RING_EVENT_IDX.bits();
/// `VIRTIO_F_RING_PACKED`.
pub const PACKED: u64 = VirtioFeatureFlags::RING_PACKED.bits();
/// `VIRTIO_BLK_F_RO`.
pub const READ_ONLY: u64 = VirtioBlkFeatureFlags::RO.bits();

/// What the ring keeps per request, visible to the device.
#[derive(Clone, Copy)]
#[repr(C)]
struct Slot {
    header: [u8; 16],
    payload: [u8; 16],
    status: u8,
}

/// A request header (`struct virtio_blk_req`, the part before the data).
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// One of [`kind`], or something unknown.
    pub kind: u32,
    /// Where it starts.
    pub sector: u64,
}

impl Header {
    /// The 16 bytes on the ring.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sector.to_le_bytes());
        bytes
    }
}

/// The 16 bytes of a discard or write-zeroes request
/// (`struct virtio_blk_discard_write_zeroes`).
pub fn range_payload(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}

/// One descriptor of a chain.
#[derive(Debug, Clone, Copy)]
pub enum Piece {
    /// Bytes `start..end` of the header.
    Header(usize, usize),
    /// The first bytes of the payload, as many as said.
    Payload(usize),
    /// Memory that the device reads.
    Out(Span),
    /// Memory that the device writes.
    In(Span),
    /// Memory that was never shared; the device writes.
    Nowhere(usize),
    /// The status byte.
    Status,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The chain was used; its status byte, `None` when the device did not write it.
    Used(Option<u8>),
    /// The chain was not used in time: the device gave up on the queue.
    Nothing,
}

type Transport = dyn VirtioTransport<VirtioBlkConfig, Slot>;

/// A connected disk with one queue and some shared memory.
pub struct ChainDisk {
    queue: Virtqueue<'static, Slot>,
    notifier: Box<dyn QueueNotifier>,
    transport: Box<Transport>,
    arena: Arena,
    _memory: Mapping,
}

impl ChainDisk {
    /// Connects with those of `features` that the server has, starts one queue of `entries`
    /// entries and shares `arena_bytes` bytes.
    ///
    /// # Errors
    /// A refused connection or protocol step.
    pub fn connect(
        socket: &Path,
        features: u64,
        entries: u16,
        arena_bytes: usize,
    ) -> io::Result<Self> {
        let socket = socket.to_str().expect("test paths are UTF-8");
        let mut transport: Box<Transport> = Box::new(VhostUser::new(socket, features)?);
        let ring = VirtioFeatureFlags::from_bits_truncate(transport.get_features());
        let layout = VirtqueueLayout::new::<Slot>(1, usize::from(entries), ring)?;
        let translator = transport.iova_translator();
        let memory = transport.alloc_queue_mem(&layout)?;
        // SAFETY: the transport keeps the mapping until it is dropped, which the order of the
        // fields puts after the queue, and does not share it.
        let memory = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len()) };
        let queue = Virtqueue::new(translator, memory, entries, ring)?;
        transport.setup_queues(std::slice::from_ref(&queue))?;
        let notifier = transport.get_submission_notifier(0);
        let (mapping, arena) = Mapping::new(arena_bytes)?;
        let address = mapping.base.as_ptr() as usize;
        transport.map_mem_region(address, arena_bytes, mapping.file.as_raw_fd(), 0)?;
        Ok(Self {
            queue,
            notifier,
            transport,
            arena,
            _memory: mapping,
        })
    }

    /// The features that both sides have.
    pub fn features(&self) -> u64 {
        self.transport.get_features()
    }

    /// The configuration space.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn config(&self) -> io::Result<VirtioBlkConfig> {
        self.transport.get_config()
    }

    /// Waits, `patience` at most, for the server's signal that something is complete, and takes
    /// it. Whether one came.
    ///
    /// # Panics
    /// When the signal cannot be waited for.
    pub fn wait_for_signal(&self, patience: Duration) -> bool {
        let signal = self.transport.get_completion_fd(0);
        let timeout_ms = i32::try_from(patience.as_millis()).expect("a short wait");
        let mut fds = [PollFd::new(&*signal, PollFlags::IN)];
        let ready = poll(&mut fds, timeout_ms).expect("an eventfd can be polled");
        ready > 0 && signal.read().expect("an eventfd can be read") > 0
    }

    /// The shared memory.
    pub fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    /// Whether the server is asked to signal completions.
    pub fn set_notifications(&mut self, enabled: bool) {
        self.queue.set_used_notif_enabled(enabled);
    }

    /// Carries out one request and waits for its signal, for some seconds at most, before it looks at the used ring: the device need not
    /// signal what the driver has seen. Its status.
    ///
    /// # Panics
    /// When no signal comes, or the request was not used by then.
    pub fn request_by_signal(&mut self, kind: u32, sector: u64, data: Piece) -> u8 {
        let pieces = [Piece::Header(0, 16), data, Piece::Status];
        self.submit(Header { kind, sector }.bytes(), [0; 16], &pieces);
        loop {
            let signalled = self.wait_for_signal(Duration::from_secs(20));
            assert!(signalled, "request of sector {sector} completed in silence");
            // A signal from before the request may have come late.
            if let Some(completion) = self.queue.completions().next() {
                return completion.req.status;
            }
        }
    }

    /// Puts one chain of `pieces` in the ring, notifies the server as the ring asks, and waits
    /// for it to be used, `patience` at most.
    ///
    /// # Panics
    /// When the ring has no room.
    pub fn call(
        &mut self,
        header: [u8; 16],
        payload: [u8; 16],
        pieces: &[Piece],
        patience: Duration,
    ) -> Answer {
        self.submit(header, payload, pieces);
        let submitted = Instant::now();
        loop {
            if let Some(completion) = self.queue.completions().next() {
                let status = completion.req.status;
                return Answer::Used((status != UNWRITTEN).then_some(status));
            }
            if submitted.elapsed() > patience {
                return Answer::Nothing;
            }
            thread::yield_now();
        }
    }

    fn submit(&mut self, header: [u8; 16], payload: [u8; 16], pieces: &[Piece]) {
        let arena = &self.arena;
        let added = self.queue.add_request(|slot, add| {
            *slot = Slot {
                header,
                payload,
                status: UNWRITTEN,
            };
            for &piece in pieces {
                let (base, len, from_device) = match piece {
                    Piece::Header(start, end) => {
                        let bytes = &mut slot.header[start..end];
                        (bytes.as_mut_ptr(), bytes.len(), false)
                    }
                    Piece::Payload(len) => (slot.payload[..len].as_mut_ptr(), len, false),
                    Piece::Out(span) => (arena.address(span), span.len, false),
                    Piece::In(span) => (arena.address(span), span.len, true),
                    Piece::Nowhere(len) => (std::ptr::without_provenance_mut(0x1000), len, true),
                    Piece::Status => (&raw mut slot.status, 1, true),
                };
                let segment = iovec {
                    iov_base: base.cast(),
                    iov_len: len,
                };
                add(segment, from_device)?;
            }
            Ok(())
        });
        added.expect("room in the ring");
        // Between what is available and whether the server wants to hear of it (virtio specification 1.2, 2.7.13.4.1): without
        // event indices virtio-driver 0.6.1 has nothing there, and the server may go to sleep unheard.
        fence(Ordering::SeqCst);
        if self.queue.avail_notif_needed() {
            self.notifier.notify().expect("an eventfd takes a kick");
        }
    }

    /// A well-formed request: header, data, status; waits as long as it takes.
    ///
    /// # Panics
    /// When no answer comes, or one without a status.
    pub fn request(&mut self, kind: u32, sector: u64, data: &[Piece]) -> u8 {
        let mut pieces = vec![Piece::Header(0, 16)];
        pieces.extend_from_slice(data);
        pieces.push(Piece::Status);
        self.status(Header { kind, sector }.bytes(), [0; 16], &pieces)
    }

    /// One-segment requests that are all in the ring before the first answer is taken, and their
    /// answers in the order of the requests.
    ///
    /// # Panics
    /// When the ring has no room for all, or an answer is missing.
    pub fn requests(&mut self, requests: &[(Header, Piece)]) -> Vec<u8> {
        for (header, data) in requests {
            let pieces = [Piece::Header(0, 16), *data, Piece::Status];
            self.submit(header.bytes(), [0; 16], &pieces);
        }
        let mut answers = vec![None; requests.len()];
        let submitted = Instant::now();
        while answers.contains(&None) {
            for completion in self.queue.completions() {
                let Slot { header, status, .. } = completion.req;
                let same = |(asked, _): &(Header, Piece)| asked.bytes() == header;
                let which = requests.iter().position(same).expect("one that was asked");
                assert!(answers[which].replace(status).is_none(), "answered twice");
            }
            assert!(submitted.elapsed() < Duration::from_secs(20), "{answers:?}");
            thread::yield_now();
        }
        answers.into_iter().flatten().collect()
    }

    /// A discard or write-zeroes request.
    ///
    /// # Panics
    /// When no answer comes, or one without a status.
    pub fn range_request(&mut self, kind: u32, payload: [u8; 16]) -> u8 {
        let pieces = [Piece::Header(0, 16), Piece::Payload(16), Piece::Status];
        self.status(Header { kind, sector: 0 }.bytes(), payload, &pieces)
    }

    fn status(&mut self, header: [u8; 16], payload: [u8; 16], pieces: &[Piece]) -> u8 {
        match self.call(header, payload, pieces, Duration::from_secs(20)) {
            Answer::Used(Some(status)) => status,
            other => panic!("{pieces:?}: {other:?}"),
        }
    }
}

/// A memory file, mapped.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    file: File,
}

impl Mapping {
    fn new(bytes: usize) -> io::Result<(Self, Arena)> {
        let file = File::from(memfd_create("interop", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing of ours.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).expect("a mapping is not at 0");
        // SAFETY: the mapping lives in the same `ChainDisk` as the arena and is dropped after
        // it; `call` and `requests` wait for each request, so that the server is done when slices are taken.
        let arena = unsafe { Arena::new(base, bytes) };
        Ok((Self { base, bytes, file }, arena))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping and the arena that used it is gone.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        // It fails only for a range that is no mapping.
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
