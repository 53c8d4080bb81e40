//! Simulated kernel: passes requests of [Linux AIO](aio) and [io_uring](uring) to the disk, and completes each when the
//! simulator decides so.

pub mod aio;
pub mod uring;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
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
    disks: [Disk; 2],
    /// Which of them the guest uses; the other one is the target of jobs.
    used: usize,
    /// The disk of each descriptor.
    files: BTreeMap<RawFd, usize>,
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
    /// A kernel with a disk for the guest and a target for a number of iothreads, as seen by the first one.
    #[must_use]
    pub fn new(disk: Disk, target: Disk, iothreads: usize) -> Self {
        let state = State {
            disks: [disk, target],
            used: 0,
            files: BTreeMap::new(),
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
    /// The disk that the guest uses.
    pub fn disk(&mut self) -> &mut Disk {
        &mut self.disks[self.used]
    }

    /// The target of jobs.
    pub fn target(&mut self) -> &mut Disk {
        &mut self.disks[1 - self.used]
    }

    /// Both.
    pub fn disks(&mut self) -> &mut [Disk; 2] {
        &mut self.disks
    }

    /// The guest uses the target from now on, and the target of jobs is what it has used before.
    pub fn switch_over(&mut self) {
        self.used = 1 - self.used;
    }

    /// The disk behind a descriptor.
    pub(crate) fn disk_of(&mut self, fd: RawFd) -> &mut Disk {
        let index = self.files.get(&fd).expect("an opened disk");
        &mut self.disks[*index]
    }

    /// How many requests the kernel has.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.disks.iter().map(|disk| disk.held.len()).sum()
    }

    /// One of them: its disk, whether the guest uses that, and its index there.
    pub fn pick(&mut self, pick: usize) -> Option<(&mut Disk, bool, usize)> {
        let count = self.held_count();
        let first = self.disk().held.len();
        match pick.checked_rem(count)? {
            index if index < first => Some((self.disk(), true, index)),
            index => Some((self.target(), false, index - first)),
        }
    }

    /// The requests of an iothread are not held any more.
    pub(crate) fn forget(&mut self, iothread: usize) {
        for disk in &mut self.disks {
            disk.forget(iothread);
        }
    }

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

/// An opened disk.
pub struct File {
    kernel: Kernel,
    /// Its number.
    disk: usize,
}

impl Kernel {
    /// Opens the disk that the guest uses, or the target of jobs.
    #[must_use]
    pub fn open(&self, target: bool) -> File {
        let used = self.state().used;
        File {
            kernel: self.clone(),
            disk: if target { 1 - used } else { used },
        }
    }
}

impl SimulatedDisk for File {
    fn opened_as(&self, fd: RawFd) {
        self.kernel.state().files.insert(fd, self.disk);
    }

    fn next_data_or_hole(&self, is_data: bool, from: u64) -> Option<u64> {
        self.kernel.state().disks[self.disk].next_data_or_hole(is_data, from)
    }

    unsafe fn carry_out(&self, request: &Request) -> Result<(), Errno> {
        // SAFETY: our caller promises the same.
        unsafe { self.kernel.state().disks[self.disk].work(request) }
    }
}
