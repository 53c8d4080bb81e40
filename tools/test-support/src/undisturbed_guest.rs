//! A guest on another export of the same iothread, which must not notice what a test does.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::deadline::eventually;
use crate::repeating_thread::RepeatingThread;
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver};

/// Blocks that it writes and reads in turn.
const BLOCKS: u64 = 64;

/// Blocks verified before something is believed to have left it alone: enough that some were begun after that was done.
const ENOUGH: u64 = 3;

/// A guest that writes blocks and reads them again, all the time.
#[derive(Debug)]
pub struct UndisturbedGuest {
    verified: Arc<AtomicU64>,
    thread: RepeatingThread,
}

impl UndisturbedGuest {
    /// Connects to a disk, whose queues are used in turn.
    pub fn start(socket: &Path, queues: u32) -> Self {
        let mut guest = RequestDriver::connect(socket, queues);
        let verified = Arc::<AtomicU64>::default();
        let count = verified.clone();
        let thread = RepeatingThread::start(move |round| {
            let (queue, block) = (u32::from(round) % queues, u64::from(round) % BLOCKS);
            let byte = u8::try_from(round % 251).unwrap();
            guest.request(queue, OUT, block, byte);
            guest.request(queue, IN, block, 0);
            assert!(
                guest.data(queue, 0) == [byte; BLOCK],
                "the undisturbed guest reads other data than it wrote: queue {queue}, block {block}"
            );
            count.fetch_add(1, Ordering::Relaxed);
        });
        UndisturbedGuest { verified, thread }
    }

    /// Waits until some more of its requests were right.
    #[track_caller]
    pub fn goes_on(&self, after: impl Display) {
        let verified = || self.verified.load(Ordering::Relaxed);
        let goal = verified() + ENOUGH;
        eventually(format_args!("the guest goes on after: {after}"), || {
            assert!(!self.thread.has_panicked(), "disturbed by: {after}");
            verified() >= goal
        });
    }

    /// Ends it; its last requests were right as well.
    pub fn stop(self) {
        drop(self.thread);
    }
}
