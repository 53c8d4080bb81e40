//! A well-behaved guest on another export of the same iothread, which verifies its data all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use test_support::deadline::eventually;

use crate::daemon::{Daemon, QUIET};
use crate::guest::Guest;

/// Blocks that are written and read in turn.
const BLOCKS: u64 = 512;

/// Blocks verified before a row is believed to have left it alone: enough that some were begun
/// after the row was done.
const ENOUGH: u64 = 3;

pub struct VerifyingGuest {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<(), String>>,
}

#[derive(Default)]
struct Shared {
    verified: AtomicU64,
    stop: AtomicBool,
}

impl VerifyingGuest {
    /// Connects to the quiet export, and writes and verifies on a thread until it is stopped.
    pub fn start(daemon: &Daemon) -> Self {
        let mut guest = Guest::connect(&daemon.socket(QUIET));
        guest.ready();
        let shared = Arc::<Shared>::default();
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    let done = shared.verified.load(Ordering::Relaxed);
                    let seed = u8::try_from(done % 251).unwrap();
                    let queue = usize::try_from(done % 2).unwrap();
                    guest.verified_io(queue, done % BLOCKS, seed)?;
                    shared.verified.store(done + 1, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        VerifyingGuest { shared, thread }
    }

    /// Waits until some more of its requests were right.
    pub fn goes_on(&self, after: &str) {
        let verified = || self.shared.verified.load(Ordering::Relaxed);
        let goal = verified() + ENOUGH;
        eventually(format_args!("the bystander goes on after: {after}"), || {
            assert!(
                verified() >= goal || !self.thread.is_finished(),
                "the bystander was disturbed by: {after}"
            );
            verified() >= goal
        });
    }

    pub fn stop(self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        assert_eq!(self.thread.join().unwrap(), Ok(()), "the bystander");
    }
}
