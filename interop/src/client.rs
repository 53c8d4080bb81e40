//! A disk through `blkio`'s `virtio-blk-vhost-user` driver: the client that virtual machine
//! tools use.
//!
//! What it decides by itself: split rings with `EVENT_IDX` and without indirect descriptors, FUA
//! as a write followed by a flush, and refusals of its own (offsets that are no multiple of 512,
//! writes on a disk opened read-only). [`crate::chains`] is for what that leaves out.

use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use blkio::{Blkio, Blkioq, Completion, Errno, MemoryRegion, ReqFlags, iovec};

use crate::SECTOR_BYTES;
use crate::memory::{Arena, Span};
use crate::model::Extent;

/// A request without an answer for this long is taken for lost. It is far above what any request
/// needs, so that a busy machine does not fail a test.
const LOST_AFTER: Duration = Duration::from_secs(20);

/// What a request answers when the device said `VIRTIO_BLK_S_IOERR`.
pub const IO_ERROR: i32 = -Errno::IO.raw_os_error();

/// How to connect.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Client {
    queues: usize,
    ring_entries: u16,
    arena_bytes: usize,
    read_only: bool,
    polling: bool,
}

impl Client {
    /// One queue of 1024 entries (341 one-segment requests in flight) with `arena_bytes` bytes
    /// of shared memory.
    pub fn new(arena_bytes: usize) -> Self {
        Self {
            queues: 1,
            ring_entries: 1024,
            arena_bytes,
            read_only: false,
            polling: false,
        }
    }

    /// Several queues, each with memory of its own.
    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = queues;
        self
    }

    /// Another ring size, a power of two.
    pub fn ring_entries(mut self, entries: u16) -> Self {
        self.ring_entries = entries;
        self
    }

    /// Never writes; blkio wants that said for a read-only disk.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Watches the used ring and asks for no notifications.
    pub fn polling(mut self) -> Self {
        self.polling = true;
        self
    }

    /// Connects, starts the queues and shares the memory.
    ///
    /// # Errors
    /// What blkio says: a refused connection or protocol step, more queues than there are, a
    /// read-only disk opened for writing.
    pub fn connect(self, socket: &Path) -> blkio::Result<Disk> {
        let mut device = Blkio::new("virtio-blk-vhost-user")?;
        device.set_str("path", socket.to_str().expect("test paths are UTF-8"))?;
        device.set_bool("read-only", self.read_only)?;
        device.connect()?;
        let queues = i32::try_from(self.queues).expect("few queues");
        let (used, unused) = match self.polling {
            true => ("num-poll-queues", "num-queues"),
            false => ("num-queues", "num-poll-queues"),
        };
        device.set_i32(used, queues)?;
        device.set_i32(unused, 0)?;
        device.set_i32("queue-size", i32::from(self.ring_entries))?;
        let started = device.start()?;
        let mut disk = Disk {
            queues: Vec::new(),
            device,
        };
        for requests in started.queues.into_iter().chain(started.poll_queues) {
            let (_, arena) = disk.share_memory(self.arena_bytes)?;
            disk.queues.push(Queue {
                requests,
                arena,
                in_flight: 0,
            });
        }
        Ok(disk)
    }
}

/// Memory shared with a connected disk, as blkio knows it; its bytes are an [`Arena`].
pub struct Region(MemoryRegion);

/// A connected disk. Dropping it closes the connection, whatever is in flight.
pub struct Disk {
    // before `device`, whose rings they use
    queues: Vec<Queue>,
    device: Blkio,
}

impl Disk {
    /// Its size in sectors.
    ///
    /// # Panics
    /// When the configuration cannot be read.
    pub fn sectors(&self) -> u64 {
        let bytes = self.device.get_u64("capacity").expect("the configuration");
        bytes / SECTOR_BYTES as u64
    }

    /// One of blkio's properties (`max-discard-len`, `request-alignment`, …) as a number.
    ///
    /// # Panics
    /// When there is none of that name.
    pub fn property(&self, name: &str) -> u64 {
        let signed = || Ok(u64::from(self.device.get_i32(name)?.unsigned_abs()));
        let value = self.device.get_u64(name).or_else(|_| signed());
        value.unwrap_or_else(|e: blkio::Error| panic!("{name}: {e}"))
    }

    /// A queue.
    pub fn queue(&mut self, i: usize) -> &mut Queue {
        &mut self.queues[i]
    }

    /// All queues, to give each to a thread.
    pub fn queues(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    /// Shares `bytes` more bytes with the server, while its queues run.
    ///
    /// # Errors
    /// What the server answers.
    pub fn share_memory(&mut self, bytes: usize) -> blkio::Result<(Region, Arena)> {
        let region = self.device.alloc_mem_region(bytes)?;
        self.device.map_mem_region(&region)?;
        let base = NonNull::new(region.addr as *mut u8).expect("a mapping is not at 0");
        // SAFETY: blkio keeps an allocated region mapped until it and all its queues are gone,
        // or until `unshare_memory`, which takes the arena; a queue lends its arena out only
        // while it has nothing in flight.
        let arena = unsafe { Arena::new(base, bytes) };
        Ok((Region(region), arena))
    }

    /// Takes memory away from the server again. `arena` is the one that came with `region`.
    pub fn unshare_memory(&mut self, region: Region, arena: Arena) {
        assert_eq!(arena.address(Span::new(0, 0)) as usize, region.0.addr);
        self.device.unmap_mem_region(&region.0);
        self.device.free_mem_region(&region.0);
    }
}

/// One request. Lengths in bytes are those of the spans, of any alignment.
#[derive(Debug, Clone)]
pub enum Request {
    /// Reads from a sector on.
    Read(u64, Vec<Span>),
    /// Writes from a sector on; with FUA it flushes as well.
    Write(u64, Vec<Span>, ReqFlags),
    /// Gives an extent back.
    Discard(Extent),
    /// Zeroes an extent.
    WriteZeroes(Extent, ReqFlags),
    /// Makes completed writes last.
    Flush,
}

/// A queue with memory of its own.
pub struct Queue {
    requests: Blkioq,
    arena: Arena,
    in_flight: usize,
}

impl Queue {
    /// Its memory.
    ///
    /// # Panics
    /// When requests are in flight: the server may be writing to it.
    pub fn arena(&mut self) -> &mut Arena {
        assert_eq!(self.in_flight, 0, "the memory is the server's");
        &mut self.arena
    }

    /// Uses other memory from now on and returns what it used before.
    pub fn replace_arena(&mut self, arena: Arena) -> Arena {
        std::mem::replace(self.arena(), arena)
    }

    /// Runs `requests`, as many at once as the ring has room for, and returns the answers in
    /// their order: 0 or a negative errno.
    ///
    /// # Panics
    /// When an answer does not come.
    pub fn run(&mut self, requests: &[Request]) -> Vec<i32> {
        let segments = self.submit(requests);
        let mut answers = vec![None; requests.len()];
        while self.in_flight > 0 {
            for completion in self.reap(1) {
                let answer = &mut answers[completion.user_data];
                assert!(answer.is_none(), "a request is completed once");
                *answer = Some(completion.ret);
            }
        }
        drop(segments);
        answers.into_iter().flatten().collect()
    }

    /// Runs one request.
    ///
    /// # Panics
    /// When the answer does not come.
    pub fn run_one(&mut self, request: Request) -> i32 {
        self.run(&[request])[0]
    }

    /// Puts `requests` in the ring, notifies the server, and leaves. The disk must be dropped
    /// next, because the completions are not awaited.
    ///
    pub fn abandon(&mut self, requests: &[Request]) {
        // blkio keeps no pointer to the segments of a request that is in the ring
        drop(self.submit(requests));
        let done = self.reap(0).len();
        assert!(done <= requests.len(), "only these were in the ring");
    }

    fn submit(&mut self, requests: &[Request]) -> Vec<Vec<iovec>> {
        let mut segments = Vec::with_capacity(requests.len());
        for (id, request) in requests.iter().enumerate() {
            self.in_flight += 1;
            match request {
                Request::Read(sector, spans) => {
                    let (at, count) = self.segments(spans, &mut segments);
                    let no = ReqFlags::empty();
                    self.requests.readv(offset(*sector), at, count, id, no);
                }
                Request::Write(sector, spans, flags) => {
                    let (at, count) = self.segments(spans, &mut segments);
                    self.requests.writev(offset(*sector), at, count, id, *flags);
                }
                Request::Discard(extent) => {
                    let (start, len) = (offset(extent.sector), offset(extent.sectors));
                    self.requests.discard(start, len, id, ReqFlags::empty());
                }
                Request::WriteZeroes(extent, flags) => {
                    let (start, len) = (offset(extent.sector), offset(extent.sectors));
                    self.requests.write_zeroes(start, len, id, *flags);
                }
                Request::Flush => self.requests.flush(id, ReqFlags::empty()),
            }
        }
        segments
    }

    fn segments(&self, spans: &[Span], kept: &mut Vec<Vec<iovec>>) -> (*const iovec, u32) {
        let segments = spans.iter().map(|&span| iovec {
            iov_base: self.arena.address(span).cast(),
            iov_len: span.len,
        });
        let segments: Vec<_> = segments.collect();
        let at = (segments.as_ptr(), u32::try_from(segments.len()));
        kept.push(segments);
        (at.0, at.1.expect("few segments"))
    }

    fn reap(&mut self, at_least: usize) -> Vec<Completion> {
        let mut completions = [const { MaybeUninit::uninit() }; 64];
        let mut left = LOST_AFTER;
        let timeout = Some(&mut left);
        let done = self
            .requests
            .do_io(&mut completions, at_least, timeout, None);
        let done = done.unwrap_or_else(|e| panic!("{} requests lost: {e}", self.in_flight));
        self.in_flight -= done;
        let done = completions.into_iter().take(done);
        // SAFETY: `do_io` returns how many completions, from the first on, it wrote.
        done.map(|c| unsafe { c.assume_init() }).collect()
    }
}

fn offset(sectors: u64) -> u64 {
    sectors * SECTOR_BYTES as u64
}

/// The spans of one extent's bytes, in order, as one buffer.
pub fn gather(arena: &Arena, spans: &[Span]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(spans.iter().map(|s| s.len).sum());
    for &span in spans {
        bytes.extend_from_slice(arena.bytes(span));
    }
    bytes
}

/// Copies `bytes` into the spans, in order.
///
/// # Panics
/// When the spans are not as long as the bytes.
pub fn scatter(arena: &mut Arena, spans: &[Span], bytes: &[u8]) {
    let mut rest = bytes;
    for &span in spans {
        let (head, tail) = rest.split_at(span.len);
        arena.bytes_mut(span).copy_from_slice(head);
        rest = tail;
    }
    assert!(rest.is_empty(), "the spans take all bytes");
}
