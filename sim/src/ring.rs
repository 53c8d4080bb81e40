//! The kernel below io_uring: entries are read from their 64 bytes, completions are on a list until the process lets them be made
//! visible, few at a time, and the descriptor says so only for the first on the list, and only if it is to.

use std::collections::{BTreeSet, VecDeque};

use block::SimulatedRing;
use engine::Errno;

use crate::disk::{Does, segments};
use crate::kernel::Kernel;

/// Completions that are visible at the same time, at most: all runs meet that limit.
const VISIBLE: usize = 3;

/// `IORING_OP_*` of `linux/io_uring.h`, those that are used.
const READV: u64 = 1;
const WRITEV: u64 = 2;
const FSYNC: u64 = 3;
const FALLOCATE: u64 = 17;
const READ: u64 = 22;
const WRITE: u64 = 23;

/// A request in the form of the disk.
struct Entry {
    user_data: u64,
    does: Does,
    offset: usize,
    buffers: Vec<(usize, usize)>,
}

/// What a ring consists of.
pub(crate) struct Lists {
    entries: u32,
    submission: VecDeque<Entry>,
    /// What the kernel took and the process has not heard of.
    under_way: BTreeSet<u64>,
    unfinished: VecDeque<(u64, i32)>,
    visible: VecDeque<(u64, i32)>,
    quiet: bool,
}

impl Lists {
    /// A request has ended; whether the descriptor is written.
    pub(crate) fn post(&mut self, user_data: u64, result: i32) -> bool {
        let tells = self.unfinished.is_empty() && !self.quiet;
        self.unfinished.push_back((user_data, result));
        tells
    }

    fn show(&mut self) {
        while self.visible.len() < VISIBLE
            && let Some(completion) = self.unfinished.pop_front()
        {
            self.visible.push_back(completion);
        }
    }
}

/// A kernel's face for a process that uses io_uring.
pub struct Ring(Kernel);

impl Ring {
    /// A new ring.
    #[must_use]
    pub fn new(kernel: &Kernel, entries: u32) -> Self {
        kernel.set_uring(Some(Lists {
            entries,
            submission: VecDeque::new(),
            under_way: BTreeSet::new(),
            unfinished: VecDeque::new(),
            visible: VecDeque::new(),
            quiet: true,
        }));
        Ring(kernel.clone())
    }

    fn lists<T>(&self, with: impl FnOnce(&mut Lists) -> T) -> T {
        with(self.0.state().uring(self.0.iothread()))
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

/// # Safety
/// The array of a vectored request is valid.
unsafe fn read(words: [u64; 8]) -> Entry {
    let [low, offset, addr, length, user_data, ..] = words;
    let (opcode, len, flags) = (low & 0xff, length & 0xffff_ffff, length >> 32);
    let stable = flags == u64::from(libc::RWF_DSYNC.unsigned_abs());
    let does = match opcode {
        READ | READV => Does::Read,
        WRITE | WRITEV => Does::Write { stable },
        FSYNC => Does::Flush,
        // Its length is where others have an address.
        FALLOCATE => Does::Zeroes {
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
        does,
        offset: to_usize(offset),
        buffers,
    }
}

// SAFETY: buffers are only touched when the simulator completes a request, and not after `finish` has ended them all.
unsafe impl SimulatedRing for Ring {
    fn entries(&self) -> u32 {
        self.lists(|lists| lists.entries)
    }

    unsafe fn push(&mut self, entry: [u64; 8]) {
        // SAFETY: our caller promises the same.
        let entry = unsafe { read(entry) };
        self.lists(|lists| {
            lists.submission.push_back(entry);
            assert!(lists.submission.len() <= lists.entries as usize, "overrun");
        });
    }

    fn submit(&mut self, count: u32, finish: bool) -> Result<usize, Errno> {
        let mut state = self.0.state();
        let count = count as usize;
        let answer = state.answers.pop_front();
        let taken = answer.unwrap_or(Ok(count))?.min(count);
        for _ in 0..taken {
            let lists = state.uring(self.0.iothread());
            let entry = lists.submission.pop_front().expect("so many were pushed");
            let new = lists.under_way.insert(entry.user_data);
            assert!(new, "a name is used twice at the same time");
            let first = entry.buffers.first();
            state.came.extend(first.map(|(address, _)| *address));
            let Entry {
                user_data,
                does,
                offset,
                buffers,
            } = entry;
            let name = self.0.name(user_data);
            state.disk.take(name, does, offset, buffers);
        }
        drop(state);
        if finish {
            self.lists(Lists::show);
        }
        Ok(taken)
    }

    fn finish(&mut self, wait: bool) {
        let mut state = self.0.state();
        if wait {
            // The process ends: what becomes of its requests was decided before, and nobody hears of them.
            state.disk.forget(self.0.iothread());
            let lists = state.uring(self.0.iothread());
            lists.unfinished.clear();
            lists.visible.clear();
            let left = lists.under_way.iter();
            let ended = -Errno::CANCELED.raw_os_error();
            lists.visible = left.map(|user_data| (*user_data, ended)).collect();
            return;
        }
        state.uring(self.0.iothread()).show();
    }

    fn unfinished(&self) -> bool {
        self.lists(|lists| !lists.unfinished.is_empty())
    }

    fn visible(&self) -> usize {
        self.lists(|lists| lists.visible.len())
    }

    fn take(&mut self) -> Option<(u64, i32)> {
        self.lists(|lists| {
            let taken = lists.visible.pop_front()?;
            lists.under_way.remove(&taken.0);
            Some(taken)
        })
    }

    fn set_quiet(&mut self, quiet: bool) {
        self.lists(|lists| lists.quiet = quiet);
    }
}
