//! The course of a measurement: warm-up, the part that counts, the end.
//!
//! Workers run without looking at a clock to see whether they are done: the conductor tells them
//! through one word that they read between batches.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use commands::signals;

use super::meter::Tally;
use crate::error::{Error, Result};

/// Interval at which the conductor checks for Ctrl-C.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Where a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Load that does not count.
    WarmUp,
    /// Load that counts.
    Measure,
    /// No more requests; those in flight are waited for.
    Stop,
}

/// What the conductor tells the workers.
#[derive(Debug)]
pub struct Phases(AtomicU8);

impl Phases {
    /// Now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }
}

/// One thread's part of the load: runs until [`Phase::Stop`], then says what it did.
pub type Worker<'w> = Box<dyn FnOnce(&Phases) -> Result<Tally> + Send + 'w>;

/// Runs the workers, each on a thread of its own; calls `observe` right before each next phase.
///
/// # Errors
/// The first worker's, which ends the others; [`Error::Interrupted`]; `observe`'s.
pub fn conduct(
    workers: Vec<Worker<'_>>,
    warm_up: Duration,
    time: Duration,
    mut observe: impl FnMut(Phase) -> Result<()>,
) -> Result<Vec<Tally>> {
    let phases = Phases(AtomicU8::new(Phase::WarmUp as u8));
    let phases = &phases;
    thread::scope(|scope| {
        let (ended, end) = channel();
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let ended = Ended {
                    well: false,
                    sender: ended.clone(),
                };
                scope.spawn(move || {
                    let mut ended = ended;
                    let tally = worker(phases);
                    ended.well = tally.is_ok();
                    tally
                })
            })
            .collect();
        let mut running = threads.len();
        let mut conducted = || {
            for (duration, next) in [(warm_up, Phase::Measure), (time, Phase::Stop)] {
                let until = Instant::now() + duration;
                loop {
                    if signals::termination_requested() {
                        return Err(Error::Interrupted);
                    }
                    let left = until.saturating_duration_since(Instant::now());
                    match end.recv_timeout(left.min(LOOK_INTERVAL)) {
                        Err(RecvTimeoutError::Timeout) if left.is_zero() => break,
                        Err(RecvTimeoutError::Timeout) => {}
                        // One of them has done all that it was to do. So have all, or they go on.
                        Ok(true) if running > 1 => running -= 1,
                        // The one that failed says why.
                        Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                    }
                }
                // Before it is over: threads that end take their figures along.
                observe(next)?;
                phases.set(next);
            }
            Ok(())
        };
        let conducted = conducted();
        phases.set(Phase::Stop);
        let mut tallies = Vec::new();
        let mut failed = conducted.err();
        for thread in threads {
            match thread.join() {
                Ok(Ok(tally)) => tallies.push(tally),
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        failed.map_or(Ok(tallies), Err)
    })
}

/// Tells the conductor of a worker's end, also of one that panics.
struct Ended {
    well: bool,
    sender: Sender<bool>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        // The conductor may have left already.
        let _ = self.sender.send(self.well);
    }
}
