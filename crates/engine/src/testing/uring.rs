//! A fake io_uring on a disk in memory: tests decide when and how requests complete.
//!
//! Requests are held until [`FakeRing::complete`] ends them, in any order, whole, short or with an
//! error; results of io_uring_enter(2) can be scripted. A completion is invisible until the engine
//! lets the kernel flush it, and few can be visible at once.

use std::collections::VecDeque;

use io_uring::{opcode, squeue};
use rustix::io::Errno;

use super::{Outcome, transfer};
use crate::uring::Ring;

/// Default of the most visible completions, which every test exceeds.
const VISIBLE: usize = 3;

/// A request that the kernel took.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) opcode: u8,
    pub(crate) offset: u64,
    pub(crate) rw_flags: i32,
    pub(crate) user_data: u64,
    /// (address, bytes), copied at submission like the kernel does.
    buffers: Vec<(usize, usize)>,
}

#[derive(Debug)]
pub(crate) struct FakeRing {
    pub(crate) disk: Vec<u8>,
    /// Results of the next submissions; without one everything is taken.
    pub(crate) script: VecDeque<Result<usize, Errno>>,
    /// How many requests each submission was given.
    pub(crate) calls: Vec<usize>,
    /// Taken and not completed, in order.
    pub(crate) held: Vec<Held>,
    /// The most requests in flight, if the disk works by itself: one more completes the oldest during the submission.
    pub(crate) keeps: Option<usize>,
    /// Calls that flushed completions.
    pub(crate) flushes: usize,
    /// Whether the eventfd was written since the test checked.
    pub(crate) woken: bool,
    pub(crate) can_disable_eventfd: bool,
    /// The kernel sets its flag after the work was done.
    pub(crate) stale: bool,
    quiet: bool,
    entries: u32,
    submission: VecDeque<Held>,
    unflushed: VecDeque<(u64, i32)>,
    visible: VecDeque<(u64, i32)>,
}

impl FakeRing {
    /// A ring on a disk with this content, that takes everything.
    pub(crate) fn new(disk: Vec<u8>, entries: u32) -> Self {
        Self {
            disk,
            script: VecDeque::new(),
            calls: Vec::new(),
            held: Vec::new(),
            keeps: None,
            flushes: 0,
            woken: false,
            can_disable_eventfd: true,
            stale: false,
            quiet: true,
            entries,
            submission: VecDeque::new(),
            unflushed: VecDeque::new(),
            visible: VecDeque::new(),
        }
    }

    /// Ends the `index`th held request.
    pub(crate) fn complete(&mut self, index: usize, outcome: Outcome) {
        let held = self.held.remove(index);
        let write = [opcode::Write::CODE, opcode::Writev::CODE].contains(&held.opcode);
        let mut run = |max| transfer(&mut self.disk, write, held.offset, &held.buffers, max);
        let res = match outcome {
            Outcome::Error(errno) => -errno.raw_os_error(),
            Outcome::Whole => i32::try_from(run(usize::MAX)).unwrap(),
            Outcome::Short(max) => i32::try_from(run(max)).unwrap(),
        };
        // Like the kernel: only the first on the list writes the eventfd, and only if that is on.
        if self.unflushed.is_empty() && !(self.quiet && self.can_disable_eventfd) {
            self.woken = true;
        }
        self.unflushed.push_back((held.user_data, res));
    }

    /// Flushes completions, as many as may be visible.
    fn make_visible(&mut self) {
        self.flushes += 1;
        while self.visible.len() < VISIBLE
            && let Some(completion) = self.unflushed.pop_front()
        {
            self.visible.push_back(completion);
        }
    }
}

/// Parses an entry, by the layout of `struct io_uring_sqe`.
fn read(entry: &squeue::Entry) -> Held {
    // SAFETY: an entry is 64 bytes that the kernel would read.
    let words = unsafe { std::ptr::from_ref(entry).cast::<[u64; 8]>().read() };
    let [low, offset, addr, length, user_data, ..] = words;
    let opcode = u8::try_from(low & 0xff).unwrap();
    let len = usize::try_from(length & 0xffff_ffff).unwrap();
    let addr = usize::try_from(addr).unwrap();
    let buffers = match opcode {
        opcode::Read::CODE | opcode::Write::CODE => vec![(addr, len)],
        opcode::Readv::CODE | opcode::Writev::CODE if len > 0 => {
            // SAFETY: the engine's promise: the array is valid until completion.
            let array = unsafe {
                std::slice::from_raw_parts(
                    std::ptr::with_exposed_provenance::<libc::iovec>(addr),
                    len,
                )
            };
            array
                .iter()
                .map(|b| (b.iov_base as usize, b.iov_len))
                .collect()
        }
        _ => Vec::new(),
    };
    Held {
        opcode,
        offset,
        rw_flags: i32::try_from(length >> 32).unwrap(),
        user_data,
        buffers,
    }
}

// SAFETY: buffers are only touched by `complete`, which only tests call, and which completes what is
// held once.
unsafe impl Ring for FakeRing {
    fn sq_entries(&self) -> u32 {
        self.entries
    }

    unsafe fn push(&mut self, entry: &squeue::Entry) {
        self.submission.push_back(read(entry));
        assert!(self.submission.len() <= self.entries as usize, "overrun");
    }

    fn submit(&mut self, count: u32, flush: bool) -> Result<usize, Errno> {
        self.calls.push(count as usize);
        let answer = self.script.pop_front();
        let count = answer.unwrap_or(Ok(count as usize))?.min(count as usize);
        for _ in 0..count {
            self.held.extend(self.submission.pop_front());
            while self.keeps.is_some_and(|keeps| self.held.len() > keeps) {
                self.complete(0, Outcome::Whole);
            }
        }
        if flush {
            self.make_visible();
        }
        Ok(count)
    }

    fn make_completions_visible(&mut self, wait: bool) -> Result<(), Errno> {
        if wait && self.unflushed.is_empty() && !self.held.is_empty() {
            self.complete(0, Outcome::Whole);
        }
        self.make_visible();
        Ok(())
    }

    fn has_unflushed_completions(&self) -> bool {
        self.stale || !self.unflushed.is_empty()
    }

    fn has_completions(&self) -> bool {
        !self.visible.is_empty()
    }

    fn drain_completions(&mut self, mut each: impl FnMut(u64, i32)) {
        for (user_data, res) in self.visible.drain(..) {
            each(user_data, res);
        }
    }

    fn can_disable_eventfd(&self) -> bool {
        self.can_disable_eventfd
    }

    fn set_eventfd_disabled_if_possible(&mut self, quiet: bool) {
        self.quiet = quiet;
    }
}
