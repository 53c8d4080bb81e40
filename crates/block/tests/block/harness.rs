//! Requests with memory of their own, and a loop in place of an iothread.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use block::{AttachedDisk, BackendSettings, IoContext, Node, Op, Request};
use engine::{AioSettings, Completion, Errno};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sandbox::ThreadKind;
use test_support::deadline::Deadline;
use test_support::limited_host::confined::enter;

/// Memory starts at a multiple of this, plus the skew.
const PAGE: usize = 4096;

/// One request and the memory that it names.
#[derive(Debug)]
pub struct Call {
    op: Op,
    fua: bool,
    offset: u64,
    len: usize,
    /// Bytes per segment; the last may be shorter.
    segment: usize,
    skew: usize,
    /// Empty segments before each segment and at the end.
    empty: usize,
    bytes: Vec<u8>,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Outcome {
    pub result: Result<(), Errno>,
    /// Data of a read, in the order of the segments.
    pub data: Vec<u8>,
}

impl Call {
    fn new(op: Op, offset: u64, len: usize, bytes: Vec<u8>) -> Self {
        let segment = len.max(1);
        Call {
            op,
            fua: false,
            offset,
            len,
            segment,
            skew: 0,
            empty: 0,
            bytes,
        }
    }

    /// A read into memory that held something else before.
    pub fn read(offset: u64, len: usize) -> Self {
        Call::new(Op::Read, offset, len, vec![0xee; len])
    }

    pub fn write(offset: u64, bytes: &[u8]) -> Self {
        Call::new(Op::Write, offset, bytes.len(), bytes.to_vec())
    }

    pub fn flush() -> Self {
        Call::new(Op::Flush, 0, 0, Vec::new())
    }

    pub fn discard(offset: u64, len: usize) -> Self {
        Call::new(Op::Discard, offset, len, Vec::new())
    }

    pub fn write_zeroes(offset: u64, len: usize, unmap: bool) -> Self {
        Call::new(Op::WriteZeroes { unmap }, offset, len, Vec::new())
    }

    pub fn fua(mut self) -> Self {
        self.fua = true;
        self
    }

    /// The data lies in segments of so many bytes.
    pub fn cut(mut self, segment: usize) -> Self {
        self.segment = segment;
        self
    }

    /// So many empty segments before each segment and at the end.
    pub fn with_empty(mut self, empty: usize) -> Self {
        self.empty = empty;
        self
    }

    /// The memory starts so many bytes behind a page border.
    pub fn skewed(mut self, skew: usize) -> Self {
        self.skew = skew;
        self
    }
}

/// A call with its memory in place.
struct Placed {
    call: Call,
    memory: Vec<u8>,
    start: usize,
    iov: Vec<libc::iovec>,
}

impl Placed {
    fn new(call: Call) -> Self {
        let mut memory = vec![0; call.bytes.len() + call.skew + PAGE];
        let base = memory.as_mut_ptr();
        let start = base.align_offset(PAGE) + call.skew;
        let mut placed = Placed {
            call,
            memory,
            start,
            iov: Vec::new(),
        };
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let empty = vec![nothing; placed.call.empty];
        for (at, range) in placed.segments() {
            placed.iov.extend_from_slice(&empty);
            placed.memory[at..at + range.len()].copy_from_slice(&placed.call.bytes[range.clone()]);
            placed.iov.push(libc::iovec {
                iov_base: placed.memory.as_mut_ptr().wrapping_add(at).cast(),
                iov_len: range.len(),
            });
        }
        placed.iov.extend_from_slice(&empty);
        placed
    }

    /// Where each segment lies in memory, and which bytes of the data it holds. The first segment
    /// is the last in memory: none continues where the one before it ended.
    fn segments(&self) -> Vec<(usize, std::ops::Range<usize>)> {
        let total = self.call.bytes.len();
        let starts = (0..total).step_by(self.call.segment);
        starts
            .map(|from| {
                let to = total.min(from + self.call.segment);
                (self.start + total - to, from..to)
            })
            .collect()
    }

    fn request(&mut self, token: u64) -> Request {
        Request {
            op: self.call.op,
            fua: self.call.fua,
            offset: self.call.offset,
            len: self.call.len as u64,
            iov: self.iov.as_mut_ptr(),
            iov_count: u32::try_from(self.iov.len()).unwrap(),
            token,
        }
    }

    fn outcome(self, result: Result<(), Errno>) -> Outcome {
        let segments = self.segments();
        let pieces = segments
            .into_iter()
            .map(|(at, range)| &self.memory[at..at + range.len()]);
        Outcome {
            result,
            data: pieces.flatten().copied().collect(),
        }
    }
}

/// IoContext and the loop around them.
pub struct Rig {
    pub io: IoContext,
    woken: Arc<OwnedFd>,
    /// Descriptors of engines.
    watched: Vec<OwnedFd>,
}

impl Rig {
    pub fn new() -> Self {
        Rig::with_max_events(128)
    }

    pub fn with_max_events(max_events: u32) -> Self {
        let settings = BackendSettings::default();
        Rig::with_settings(BackendSettings {
            aio: AioSettings {
                max_events,
                ..settings.aio
            },
            ..settings
        })
    }

    /// In a confined process, workers are confined as the daemon's are.
    pub fn with_settings(mut settings: BackendSettings) -> Self {
        settings.pool.begin = || enter(ThreadKind::Worker);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let woken = Arc::new(eventfd(0, flags).unwrap());
        let wake = woken.clone();
        let wake = move || {
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        Rig {
            io: IoContext::new(settings, Arc::new(wake)).unwrap(),
            woken,
            watched: Vec::new(),
        }
    }

    /// A queue of the node's starts.
    pub fn attach(&mut self, node: &Arc<Node>) -> AttachedDisk {
        let watched = &mut self.watched;
        self.io.attach(node, &mut |fd| {
            watched.push(fd.try_clone_to_owned()?);
            Ok(())
        })
    }

    /// Requests that the kernel took of Linux AIO and the ring.
    pub fn submitted(&self) -> u64 {
        let aio = self.io.aio_stats();
        let aio = aio.map_or(0, |stats| stats.submitted + stats.synchronous);
        let ring = self.io.ring_stats();
        aio + ring.map_or(0, |stats| stats.submitted)
    }

    /// Runs one request that must succeed. Returns what it has read.
    pub fn ok(&mut self, node: &Arc<Node>, call: Call) -> Vec<u8> {
        self.all_ok(node, vec![call]).remove(0)
    }

    pub fn read(&mut self, node: &Arc<Node>, offset: u64, len: usize) -> Vec<u8> {
        self.ok(node, Call::read(offset, len))
    }

    /// Runs requests that must succeed. Returns what each has read.
    pub fn all_ok(&mut self, node: &Arc<Node>, calls: Vec<Call>) -> Vec<Vec<u8>> {
        let data = |outcome: Outcome| {
            assert_eq!(outcome.result, Ok(()));
            outcome.data
        };
        self.all(node, calls).into_iter().map(data).collect()
    }

    /// Runs requests to their end, as many at once as there is room for: each completes once.
    pub fn all(&mut self, node: &Arc<Node>, calls: Vec<Call>) -> Vec<Outcome> {
        let mut placed: Vec<Placed> = calls.into_iter().map(Placed::new).collect();
        let route = self.attach(node);
        let mut results = vec![None; placed.len()];
        let mut next = 0;
        let mut left = placed.len();
        let mut out = Vec::new();
        while left > 0 {
            while next < placed.len() && self.io.room(&route) > 0 {
                let request = placed[next].request(next as u64);
                // SAFETY: `placed` and the node outlive the loop, which ends when all requests
                // have completed; nothing in `placed` is touched before.
                let taken = unsafe { self.io.submit(&route, request) };
                assert!(taken.is_ok(), "there was room");
                next += 1;
            }
            self.io.poll_tasks_and_submit();
            self.wait();
            self.io.reap_and_poll_tasks(&mut out);
            for Completion { token, result } in out.drain(..) {
                let before = results[usize::try_from(token).unwrap()].replace(result);
                assert_eq!(before, None, "request {token} completed twice");
                left -= 1;
            }
        }
        // A ring may say that there is something to finish when that has just been done.
        self.io.reap_and_poll_tasks(&mut out);
        assert!(out.is_empty(), "a completion of no request: {out:?}");
        self.io.detach(route);
        let outcomes = placed.into_iter().zip(results);
        outcomes
            .map(|(placed, result)| placed.outcome(result.unwrap()))
            .collect()
    }

    /// Submits a [request for the first sector](first_sector).
    pub fn submit(&mut self, disk: &AttachedDisk, op: Op, token: u64) {
        // SAFETY: its list and memory are never freed.
        unsafe { self.io.submit(disk, first_sector(op, token)) }.unwrap();
    }

    /// Runs until so many requests have completed.
    pub fn run_until_completed(&mut self, count: usize) -> Vec<Completion> {
        let (mut out, deadline) = (Vec::new(), Deadline::default());
        while out.len() < count {
            deadline.check(format_args!("{count} requests complete: {out:?}"));
            self.io.poll_tasks_and_submit();
            self.io.reap_and_poll_tasks(&mut out);
            std::thread::yield_now();
        }
        out
    }

    /// Runs blocking work on a worker, and waits for it.
    pub fn call(
        &mut self,
        call: impl FnOnce() -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), Errno> {
        self.io.submit_blocking_call(0, Box::new(call), 0);
        let mut out = Vec::new();
        while out.is_empty() {
            self.wait();
            self.io.reap_and_poll_tasks(&mut out);
        }
        out[0].result
    }

    /// Sleeps until something may have completed.
    fn wait(&mut self) {
        if self.io.arm_eventfds_and_check_finished() {
            return;
        }
        let by_clock = self.io.next_deadline_ns().is_some() || self.io.needs_retry();
        let timeout = rustix::event::Timespec {
            tv_sec: if by_clock { 0 } else { 60 },
            tv_nsec: if by_clock { 1_000_000 } else { 0 },
        };
        let mut fds = vec![self.woken.as_fd()];
        fds.extend(self.watched.iter().map(AsFd::as_fd));
        let mut polled: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        match poll(&mut polled, Some(&timeout)) {
            // The kernel interrupts the thread to start a worker for its ring.
            Err(Errno::INTR) => {}
            ready => assert!(by_clock || ready.unwrap() > 0, "a request was lost"),
        }
        for fd in fds {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }
}

/// A request for the first sector. All of a thread share their memory, which is never freed, and whose content means nothing.
pub fn first_sector(op: Op, token: u64) -> Request {
    thread_local! {
        static PLACED: RefCell<&'static mut Placed> =
            RefCell::new(Box::leak(Box::new(Placed::new(Call::read(0, 512)))));
    }
    let request = PLACED.with_borrow_mut(|placed| placed.request(token));
    Request { op, ..request }
}

/// Bytes that tell where they belong: different in every sector and for every seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
