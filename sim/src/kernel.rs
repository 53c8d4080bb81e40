//! The kernel below Linux AIO: it takes requests for the disk, and completes one when the simulator says so. Its other face is
//! the [`ring`](crate::ring).

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Request, SimulatedDisk};
use engine::aio::ContextId;
use engine::aio::abi::{
    AIO_RING_MAGIC, IOCB_CMD_FDSYNC, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE,
    IOCB_CMD_PWRITEV, IoEvent, Iocb, RWF_DSYNC, RingHeader,
};
use engine::{AioKernel, Errno};

use crate::disk::{Disk, Does, Name, segments};
use crate::ring::Lists;

/// Memory of the ring, as large and as aligned as the header and each event are.
#[repr(C, align(32))]
struct RingWord([u8; 32]);

/// What the kernel completes requests of one iothread with.
#[derive(Default)]
struct Context {
    ring: Vec<RingWord>,
    /// The other face, if that is the one that is used.
    uring: Option<Lists>,
}

/// What the simulator and the kernel's faces share.
pub struct State {
    /// The disk.
    pub disk: Disk,
    /// By iothread.
    contexts: Vec<Context>,
    /// Answers to the next io_submit(2) or io_uring_enter(2) calls; without one everything is taken.
    pub answers: VecDeque<Result<usize, Errno>>,
    /// The first buffer of each request that came, in order.
    pub came: Vec<usize>,
    now_ns: u64,
}

/// The kernel, as one iothread has it.
#[derive(Clone)]
pub struct Kernel {
    state: Arc<Mutex<State>>,
    iothread: usize,
}

/// The ring's header is reached through a pointer of its own.
fn header(ring: &mut [RingWord]) -> *mut RingHeader {
    ring.as_mut_ptr().cast()
}

impl Kernel {
    /// In front of this disk, for so many iothreads; as the first one has it.
    #[must_use]
    pub fn new(disk: Disk, iothreads: usize) -> Self {
        let state = State {
            disk,
            contexts: (0..iothreads).map(|_| Context::default()).collect(),
            answers: VecDeque::new(),
            came: Vec::new(),
            now_ns: 0,
        };
        Kernel {
            state: Arc::new(Mutex::new(state)),
            iothread: 0,
        }
    }

    /// The same, as another iothread has it.
    #[must_use]
    pub fn of(&self, iothread: usize) -> Self {
        let state = self.state.clone();
        Kernel { state, iothread }
    }

    /// What it knows.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose it is.
    pub(crate) fn iothread(&self) -> usize {
        self.iothread
    }

    pub(crate) fn name(&self, cookie: u64) -> Name {
        Name {
            iothread: self.iothread,
            cookie,
        }
    }

    /// The iothread uses io_uring from now on, or does not.
    pub(crate) fn set_uring(&self, uring: Option<Lists>) {
        self.state().contexts[self.iothread].uring = uring;
    }
}

impl State {
    /// The ring of an iothread that has made one.
    pub(crate) fn uring(&mut self, iothread: usize) -> &mut Lists {
        let lists = &mut self.contexts[iothread].uring;
        lists.as_mut().expect("a ring was made")
    }

    /// Tells an iothread that a request is done; whether it is to be woken for that.
    pub fn post(&mut self, name: Name, result: i64) -> bool {
        let context = &mut self.contexts[name.iothread];
        if let Some(lists) = &mut context.uring {
            return lists.post(name.cookie, i32::try_from(result).expect("small"));
        }
        let event = IoEvent {
            data: name.cookie,
            obj: 0,
            res: result,
            res2: 0,
        };
        let header = header(&mut context.ring);
        // SAFETY: `ring` begins with the header, and as many events as it says are behind it; the engine accesses head and
        // tail with atomics only.
        unsafe {
            let count = (*header).nr;
            let tail = (*header).tail.load(Ordering::Relaxed);
            let next = (tail + 1) % count;
            assert_ne!(next, (*header).head.load(Ordering::Acquire), "ring overrun");
            let events = header.add(1).cast::<IoEvent>();
            events.add(tail as usize).write(event);
            (*header).tail.store(next, Ordering::Release);
        }
        true
    }
}

/// Address and length of each buffer of a request.
///
/// # Safety
/// The array of a vectored request is valid.
pub unsafe fn buffers(iocb: &Iocb) -> Vec<(usize, usize)> {
    let to_usize = |number| usize::try_from(number).expect("an address");
    let (address, count) = (to_usize(iocb.buf), to_usize(iocb.nbytes));
    match iocb.opcode {
        IOCB_CMD_FDSYNC => Vec::new(),
        // SAFETY: our caller promises that it is valid.
        IOCB_CMD_PREADV | IOCB_CMD_PWRITEV => unsafe { segments(address, count) },
        _ => vec![(address, count)],
    }
}

/// What a request does.
pub fn does(iocb: &Iocb) -> Does {
    match iocb.opcode {
        IOCB_CMD_PREAD | IOCB_CMD_PREADV => Does::Read,
        IOCB_CMD_PWRITE | IOCB_CMD_PWRITEV => Does::Write {
            stable: iocb.rw_flags & RWF_DSYNC != 0,
        },
        IOCB_CMD_FDSYNC => Does::Flush,
        other => panic!("no such operation: {other}"),
    }
}

// SAFETY: the ring is allocated in `setup`, and is as large as its header says until the next one; buffers are only
// touched when the simulator completes a request, which it does not after `destroy`.
unsafe impl AioKernel for Kernel {
    fn setup(&mut self, max_events: u32) -> Result<ContextId, Errno> {
        let mut state = self.state();
        // The smallest that can be.
        let count = max_events + 1;
        let ring = &mut state.contexts[self.iothread].ring;
        *ring = (0..=count).map(|_| RingWord([0; 32])).collect();
        let new = RingHeader {
            id: 0,
            nr: count,
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            magic: AIO_RING_MAGIC,
            compat_features: 1,
            incompat_features: 0,
            header_length: 32,
        };
        // SAFETY: the header has the size and alignment of a word of the ring.
        unsafe { header(ring).write(new) };
        Ok(ContextId(1))
    }

    unsafe fn submit(&mut self, _: ContextId, iocbs: &[*mut Iocb]) -> Result<usize, Errno> {
        let mut state = self.state();
        let answer = state.answers.pop_front();
        let count = answer.unwrap_or(Ok(iocbs.len()))?.min(iocbs.len());
        for &iocb in &iocbs[..count] {
            // SAFETY: the engine promises that control blocks, and what they name, are valid.
            let (iocb, buffers) = unsafe { (*iocb, buffers(&*iocb)) };
            let offset = usize::try_from(iocb.offset).expect("a small disk");
            state
                .came
                .extend(buffers.first().map(|(address, _)| *address));
            let name = self.name(iocb.data);
            state.disk.take(name, does(&iocb), offset, buffers);
        }
        Ok(count)
    }

    unsafe fn transfer(&mut self, iocb: &Iocb) -> i64 {
        let mut state = self.state();
        // SAFETY: our caller promises that the buffers are valid.
        let moved = unsafe {
            let offset = usize::try_from(iocb.offset).expect("a small disk");
            let buffers = buffers(iocb);
            let name = self.name(iocb.data);
            state.disk.take(name, does(iocb), offset, buffers);
            let last = state.disk.held.len() - 1;
            state.disk.carry_out(last, usize::MAX).1
        };
        i64::try_from(moved).expect("a small disk")
    }

    fn now_ns(&self) -> u64 {
        let mut state = self.state();
        state.now_ns += 100;
        state.now_ns
    }

    fn getevents(&mut self, _: ContextId, _: &mut [IoEvent]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn destroy(&mut self, _: ContextId) {
        self.state().disk.forget(self.iothread);
    }

    fn ring(&self, _: ContextId) -> Option<NonNull<RingHeader>> {
        NonNull::new(header(&mut self.state().contexts[self.iothread].ring))
    }

    fn supports_fdsync(&mut self, _: ContextId) -> bool {
        true
    }
}

impl SimulatedDisk for Kernel {
    unsafe fn carry_out(&self, request: &Request) -> Result<(), Errno> {
        // SAFETY: our caller promises the same.
        unsafe { self.state().disk.work(request) }
    }
}
