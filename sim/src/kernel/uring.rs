//! io_uring of the simulated kernel: submission entries are decoded from their 64 bytes. Completions wait on a list until
//! the process lets the kernel make them visible, a few at a time. The event descriptor is signalled only for the first on
//! the list, and only if notifications are on.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::RawFd;

use block::SimulatedRing;
use engine::Errno;

use super::Kernel;
use crate::disk::{DiskOp, segments};

/// Most completions that are visible at the same time; small, so that every run reaches the limit.
const VISIBLE: usize = 3;

/// The used `IORING_OP_*` of `linux/io_uring.h`.
const READV: u64 = 1;
const WRITEV: u64 = 2;
const FSYNC: u64 = 3;
const FALLOCATE: u64 = 17;
const READ: u64 = 22;
const WRITE: u64 = 23;

/// A decoded submission entry.
struct Entry {
    user_data: u64,
    fd: RawFd,
    does: DiskOp,
    offset: usize,
    buffers: Vec<(usize, usize)>,
}

/// The state of an io_uring.
pub(crate) struct RingState {
    entries: u32,
    submission: VecDeque<Entry>,
    /// `user_data` of requests whose completion the process has not taken.
    in_flight: BTreeSet<u64>,
    unfinished: VecDeque<(u64, i32)>,
    visible: VecDeque<(u64, i32)>,
    quiet: bool,
}

impl RingState {
    /// Adds a completion; returns whether to signal the descriptor.
    pub(crate) fn post(&mut self, user_data: u64, result: i32) -> bool {
        let signals = self.unfinished.is_empty() && !self.quiet;
        self.unfinished.push_back((user_data, result));
        signals
    }

    fn make_visible(&mut self) {
        while self.visible.len() < VISIBLE
            && let Some(completion) = self.unfinished.pop_front()
        {
            self.visible.push_back(completion);
        }
    }
}

/// The io_uring of an iothread.
pub struct Ring(Kernel);

impl Ring {
    /// A new ring.
    #[must_use]
    pub fn new(kernel: &Kernel, entries: u32) -> Self {
        kernel.set_uring(Some(RingState {
            entries,
            submission: VecDeque::new(),
            in_flight: BTreeSet::new(),
            unfinished: VecDeque::new(),
            visible: VecDeque::new(),
            quiet: true,
        }));
        Ring(kernel.clone())
    }

    fn ring<T>(&self, with: impl FnOnce(&mut RingState) -> T) -> T {
        with(self.0.state().uring(self.0.iothread()))
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

/// # Safety
/// The array of a vectored request is valid.
unsafe fn decode(words: [u64; 8]) -> Entry {
    let [low, offset, addr, length, user_data, ..] = words;
    let (opcode, len, flags) = (low & 0xff, length & 0xffff_ffff, length >> 32);
    let stable = flags == u64::from(libc::RWF_DSYNC.unsigned_abs());
    let does = match opcode {
        READ | READV => DiskOp::Read,
        WRITE | WRITEV => DiskOp::Write { stable },
        FSYNC => DiskOp::Flush,
        // fallocate has its length in the field that others use for the address.
        FALLOCATE => DiskOp::Zeroes {
            len: to_usize(addr),
        },
        other => panic!("no such operation: {other}"),
    };
    let buffers = match opcode {
        READ | WRITE => vec![(to_usize(addr), to_usize(len))],
        // SAFETY: our caller promises the same.
        READV | WRITEV => unsafe { segments(to_usize(addr), to_usize(len)) },
        _ => Vec::new(),
    };
    Entry {
        user_data,
        fd: u32::try_from(low >> 32).expect("32 bits").cast_signed(),
        does,
        offset: to_usize(offset),
        buffers,
    }
}

// SAFETY: buffers are only touched when the simulator completes a request, and not after `finish` has ended them all.
unsafe impl SimulatedRing for Ring {
    fn sq_entries(&self) -> u32 {
        self.ring(|ring| ring.entries)
    }

    unsafe fn push(&mut self, entry: [u64; 8]) {
        // SAFETY: our caller promises the same.
        let entry = unsafe { decode(entry) };
        self.ring(|ring| {
            ring.submission.push_back(entry);
            assert!(ring.submission.len() <= ring.entries as usize, "overrun");
        });
    }

    fn submit(&mut self, count: u32, finish: bool) -> Result<usize, Errno> {
        let mut state = self.0.state();
        let count = count as usize;
        let answer = state.answers.pop_front();
        let taken = answer.unwrap_or(Ok(count))?.min(count);
        for _ in 0..taken {
            let ring = state.uring(self.0.iothread());
            let entry = ring
                .submission
                .pop_front()
                .expect("enough entries were pushed");
            let new = ring.in_flight.insert(entry.user_data);
            assert!(new, "user_data is used twice at the same time");
            let first = entry.buffers.first();
            state.came.extend(first.map(|(address, _)| *address));
            let Entry {
                user_data,
                fd,
                does,
                offset,
                buffers,
            } = entry;
            let name = self.0.name(user_data);
            state.disk_of(fd).take(name, does, offset, buffers);
        }
        drop(state);
        if finish {
            self.ring(RingState::make_visible);
        }
        Ok(taken)
    }

    fn make_completions_visible(&mut self, wait: bool) {
        let mut state = self.0.state();
        if wait {
            // The process ends: its requests were decided before, and their completions are lost.
            state.forget(self.0.iothread());
            let ring = state.uring(self.0.iothread());
            ring.unfinished.clear();
            ring.visible.clear();
            let left = ring.in_flight.iter();
            let ended = -Errno::CANCELED.raw_os_error();
            ring.visible = left.map(|user_data| (*user_data, ended)).collect();
            return;
        }
        state.uring(self.0.iothread()).make_visible();
    }

    fn has_unflushed_completions(&self) -> bool {
        self.ring(|ring| !ring.unfinished.is_empty())
    }

    fn visible_completion_count(&self) -> usize {
        self.ring(|ring| ring.visible.len())
    }

    fn pop_completion(&mut self) -> Option<(u64, i32)> {
        self.ring(|ring| {
            let taken = ring.visible.pop_front()?;
            ring.in_flight.remove(&taken.0);
            Some(taken)
        })
    }

    fn set_eventfd_disabled_if_possible(&mut self, quiet: bool) {
        self.ring(|ring| ring.quiet = quiet);
    }
}
