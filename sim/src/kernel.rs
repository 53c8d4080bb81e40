//! Simulated kernel: passes requests of [Linux AIO](aio) and [io_uring](uring) to the disk, and completes each when the
//! simulator decides so.

pub mod aio;
pub mod uring;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Request, SimulatedDisk};
use engine::Errno;

use crate::disk::{Disk, RequestId};
use aio::CompletionRing;
use uring::RingState;

/// The completion mechanisms of one iothread.
#[derive(Default)]
struct Context {
    aio: CompletionRing,
    /// The io_uring, if the iothread uses one instead of Linux AIO.
    uring: Option<RingState>,
}

/// State that the simulator and the kernel's interfaces share.
pub struct State {
    /// The disk.
    pub disk: Disk,
    /// By iothread.
    contexts: Vec<Context>,
    /// Results of the next io_submit(2) or io_uring_enter(2) calls; without one all requests are accepted.
    pub answers: VecDeque<Result<usize, Errno>>,
    /// The first buffer of each accepted request, in order.
    pub came: Vec<usize>,
    now_ns: u64,
}

/// The kernel as seen by one iothread.
#[derive(Clone)]
pub struct Kernel {
    state: Arc<Mutex<State>>,
    iothread: usize,
}

impl Kernel {
    /// A kernel with this disk for a number of iothreads, as seen by the first one.
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

    /// The same kernel as seen by another iothread.
    #[must_use]
    pub fn of(&self, iothread: usize) -> Self {
        let state = self.state.clone();
        Kernel { state, iothread }
    }

    /// The shared state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of the iothread.
    pub(crate) fn iothread(&self) -> usize {
        self.iothread
    }

    pub(crate) fn name(&self, cookie: u64) -> RequestId {
        RequestId {
            iothread: self.iothread,
            cookie,
        }
    }

    /// Gives the iothread an io_uring, or none.
    pub(crate) fn set_uring(&self, uring: Option<RingState>) {
        self.state().contexts[self.iothread].uring = uring;
    }
}

impl State {
    /// The io_uring of an iothread that has created one.
    pub(crate) fn uring(&mut self, iothread: usize) -> &mut RingState {
        let ring = &mut self.contexts[iothread].uring;
        ring.as_mut().expect("a ring was created")
    }

    /// Completes a request; returns whether to wake its iothread.
    pub fn post(&mut self, name: RequestId, result: i64) -> bool {
        let context = &mut self.contexts[name.iothread];
        if let Some(ring) = &mut context.uring {
            return ring.post(name.cookie, i32::try_from(result).expect("small"));
        }
        context.aio.post(name.cookie, result);
        true
    }
}

impl SimulatedDisk for Kernel {
    unsafe fn carry_out(&self, request: &Request) -> Result<(), Errno> {
        // SAFETY: our caller promises the same.
        unsafe { self.state().disk.work(request) }
    }
}
