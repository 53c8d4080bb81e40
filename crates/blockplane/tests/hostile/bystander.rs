//! A well-behaved guest on another export of the same iothread, which verifies its data all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use test_support::deadline::eventually;
use test_support::repeating_thread::RepeatingThread;

use crate::daemon::{Daemon, QUIET};
use crate::front_end::HostileFrontEnd;

/// Blocks that are written and read in turn.
const BLOCKS: u64 = 512;

/// Blocks verified before a row is believed to have left it alone: enough that some were begun
/// after the row was done.
const ENOUGH: u64 = 3;

pub struct Bystander {
    verified: Arc<AtomicU64>,
    thread: RepeatingThread,
}

impl Bystander {
    /// Connects to the quiet export, and writes and verifies on a thread until it is stopped.
    pub fn start(daemon: &Daemon) -> Self {
        let mut guest = HostileFrontEnd::connect(&daemon.socket(QUIET));
        guest.ready();
        let verified = Arc::<AtomicU64>::default();
        let counter = verified.clone();
        let thread = RepeatingThread::start(move |round| {
            let queue = usize::from(round % 2);
            let seed = u8::try_from(round % 251).unwrap();
            let done = guest.verified_io(queue, u64::from(round) % BLOCKS, seed);
            assert_eq!(done, Ok(()), "the bystander");
            counter.fetch_add(1, Ordering::Relaxed);
        });
        Bystander { verified, thread }
    }

    /// Waits until some more of its requests were right.
    pub fn goes_on(&self, after: &str) {
        let verified = || self.verified.load(Ordering::Relaxed);
        let goal = verified() + ENOUGH;
        eventually(format_args!("the bystander goes on after: {after}"), || {
            assert!(!self.thread.has_ended(), "disturbed by: {after}");
            verified() >= goal
        });
    }

    /// Ends it; its last requests were right as well.
    pub fn stop(self) {
        drop(self.thread);
    }
}
