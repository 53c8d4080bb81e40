//! A fake kernel with Linux AIO on a disk in memory: tests decide when and how requests complete.
//!
//! Requests are held until [`FakeKernel::complete`] ends them, in any order, whole, short or with
//! an error; results of io_submit(2) can be scripted. The completion ring is real memory with the
//! real layout. Transfers happen at completion, on a disk of fixed size.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::aio::abi::{
    AIO_RING_MAGIC, IOCB_CMD_FDSYNC, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV, IoEvent,
    Iocb, RingHeader,
};
use crate::aio::{AioKernel, ContextId};
use crate::testing::{Outcome, transfer};

/// A request that the kernel accepted.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) iocb: Iocb,
    /// (address, bytes), copied at submission like the kernel does.
    buffers: Vec<(usize, usize)>,
}

impl Held {
    /// # Safety
    /// The array of a vectored request is valid.
    unsafe fn new(iocb: Iocb) -> Self {
        let pair = (
            usize::try_from(iocb.buf).unwrap(),
            usize::try_from(iocb.nbytes).unwrap(),
        );
        let buffers = match iocb.opcode {
            IOCB_CMD_FDSYNC => Vec::new(),
            IOCB_CMD_PREADV | IOCB_CMD_PWRITEV if pair.1 == 0 => Vec::new(),
            IOCB_CMD_PREADV | IOCB_CMD_PWRITEV => {
                let array = std::ptr::with_exposed_provenance::<libc::iovec>(pair.0);
                // SAFETY: our caller's promise.
                let array = unsafe { std::slice::from_raw_parts(array, pair.1) };
                array
                    .iter()
                    .map(|b| (b.iov_base as usize, b.iov_len))
                    .collect()
            }
            _ => vec![pair],
        };
        Self { iocb, buffers }
    }
}

pub(crate) struct FakeKernel {
    pub(crate) disk: Vec<u8>,
    /// Results of the next io_submit(2) calls; without one everything is accepted.
    pub(crate) script: VecDeque<Result<usize, Errno>>,
    /// How many requests each io_submit(2) was given.
    pub(crate) calls: Vec<usize>,
    /// Accepted and not completed, in order.
    pub(crate) held: Vec<Held>,
    /// The most requests in flight, if the disk works by itself: one more completes the oldest during the submission.
    pub(crate) keeps: Option<usize>,
    /// It completes the newest instead of the oldest.
    pub(crate) newest_first: bool,
    /// Outcomes of the next synchronous transfers; without one they are whole.
    pub(crate) transfers: VecDeque<Outcome>,
    /// [`Iocb::data`] of synchronous transfers, in order.
    pub(crate) transferred: Vec<u64>,
    /// The time that each takes; nothing else takes any time.
    pub(crate) transfer_ns: u64,
    /// The clock.
    pub(crate) now_ns: u64,
    /// The error of io_setup(2), if any.
    pub(crate) setup_error: Option<Errno>,
    pub(crate) fdsync: bool,
    /// The header of the ring that the engine finds; `None` hides the ring.
    pub(crate) header: Option<RingHeader>,
    /// Completions go to io_getevents(2) instead of the ring.
    pub(crate) ring_unused: bool,
    pub(crate) destroyed: Rc<Cell<bool>>,
    ring: Vec<RingWord>,
    events: VecDeque<IoEvent>,
}

/// Memory of the ring, aligned as the header and the events want it.
#[repr(C, align(32))]
struct RingWord([u8; 32]);

impl FakeKernel {
    /// A kernel with a ring, on a disk with this content, that takes everything.
    pub(crate) fn new(disk: Vec<u8>) -> Self {
        Self {
            disk,
            script: VecDeque::new(),
            calls: Vec::new(),
            held: Vec::new(),
            keeps: None,
            newest_first: false,
            transfers: VecDeque::new(),
            transferred: Vec::new(),
            transfer_ns: 0,
            now_ns: 0,
            setup_error: None,
            fdsync: true,
            header: Some(RingHeader {
                id: 0,
                nr: 0,
                head: AtomicU32::new(0),
                tail: AtomicU32::new(0),
                magic: AIO_RING_MAGIC,
                compat_features: 1,
                incompat_features: 0,
                header_length: 32,
            }),
            ring_unused: false,
            destroyed: Rc::default(),
            ring: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// A kernel whose ring cannot be read.
    pub(crate) fn without_ring(mut self) -> Self {
        self.header = None;
        self.ring_unused = true;
        self
    }

    /// Ends the `index`th held request.
    pub(crate) fn complete(&mut self, index: usize, outcome: Outcome) {
        let held = self.held.remove(index);
        let res = self.carry_out(&held, outcome);
        self.post_event(IoEvent {
            data: held.iocb.data,
            obj: 0,
            res,
            res2: 0,
        });
    }

    /// Ends everything held, in order, whole.
    pub(crate) fn complete_all(&mut self) {
        while !self.held.is_empty() {
            self.complete(0, Outcome::Whole);
        }
    }

    /// Transfers the data of a request, as far as the outcome says, and returns its result.
    fn carry_out(&mut self, held: &Held, outcome: Outcome) -> i64 {
        let max = match outcome {
            Outcome::Error(errno) => return -i64::from(errno.raw_os_error()),
            Outcome::Whole => usize::MAX,
            Outcome::Short(max) => max,
        };
        let write = matches!(held.iocb.opcode, IOCB_CMD_PWRITE | IOCB_CMD_PWRITEV);
        let offset = u64::try_from(held.iocb.offset).unwrap();
        let moved = transfer(&mut self.disk, write, offset, &held.buffers, max);
        i64::try_from(moved).unwrap()
    }

    /// Adds an event to the ring, or for io_getevents(2).
    fn post_event(&mut self, event: IoEvent) {
        if self.ring_unused {
            self.events.push_back(event);
            return;
        }
        let header = self.header_ptr();
        // SAFETY: `ring` holds the header and `nr` events behind it; the engine has only atomic
        // access to head and tail.
        unsafe {
            let nr = (*header).nr;
            let tail = (*header).tail.load(Ordering::Relaxed);
            let next = (tail + 1) % nr;
            assert_ne!(
                next,
                (*header).head.load(Ordering::Acquire),
                "completion ring overrun"
            );
            header
                .add(1)
                .cast::<IoEvent>()
                .add(tail as usize)
                .write(event);
            (*header).tail.store(next, Ordering::Release);
        }
    }

    fn header_ptr(&self) -> *mut RingHeader {
        self.ring.as_ptr().cast_mut().cast()
    }
}

// SAFETY: `ring` is allocated once in `setup` with room for the header and `nr` events and lives
// as long as the kernel; buffers are only touched by `complete`, which only tests call.
unsafe impl AioKernel for FakeKernel {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        if let Some(errno) = self.setup_error {
            return Err(errno);
        }
        // The smallest possible ring, so that every test wraps it.
        let nr = max_events + 1;
        self.ring = (0..=nr).map(|_| RingWord([0; 32])).collect();
        if let Some(header) = &mut self.header {
            if header.nr == 0 {
                header.nr = nr;
            }
            // SAFETY: the header is 32 bytes, as `RingWord` is, and has no destructor.
            unsafe {
                self.ring
                    .as_mut_ptr()
                    .cast::<RingHeader>()
                    .write(std::ptr::read(header))
            };
        }
        Ok(ContextId(1))
    }

    unsafe fn submit(&mut self, _: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        self.calls.push(iocbs.len());
        let count = self.script.pop_front().unwrap_or(Ok(iocbs.len()))?;
        for &iocb in iocbs.iter().take(count) {
            // SAFETY: the engine's promise: the control block is valid for the call, and so is
            // the array of a vectored request.
            let held = unsafe {
                (*iocb).key = 0xdead; // the kernel writes there, too
                Held::new(*iocb)
            };
            self.held.push(held);
            while self.keeps.is_some_and(|keeps| self.held.len() > keeps) {
                let newest = self.held.len() - 1;
                let index = if self.newest_first { newest } else { 0 };
                self.complete(index, Outcome::Whole);
            }
        }
        Ok(count)
    }

    unsafe fn pread_or_pwrite(&mut self, iocb: &Iocb) -> i64 {
        assert_eq!(iocb.rw_flags, 0, "these calls have no flags");
        self.now_ns += self.transfer_ns;
        self.transferred.push(iocb.data);
        // SAFETY: our caller's promise.
        let held = unsafe { Held::new(*iocb) };
        let outcome = self.transfers.pop_front().unwrap_or(Outcome::Whole);
        self.carry_out(&held, outcome)
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn getevents(&mut self, _: ContextId, events: &mut [IoEvent]) -> Result<usize, Errno> {
        let count = events.len().min(self.events.len());
        for (to, from) in events.iter_mut().zip(self.events.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn destroy(&mut self, _: ContextId) {
        self.destroyed.set(true);
    }

    fn ring(&self, _: ContextId) -> Option<NonNull<RingHeader>> {
        self.header
            .as_ref()
            .and_then(|_| NonNull::new(self.header_ptr()))
    }

    fn supports_fdsync(&mut self, _: ContextId) -> bool {
        self.fdsync
    }
}
