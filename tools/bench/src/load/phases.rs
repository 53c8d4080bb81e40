//! The course of a measurement: warm-up, the part that counts, the end.
//!
//! Workers run without looking at a clock to see whether they are done: the conductor tells them
//! through one word that they read between batches.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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

/// What ends the part that counts.
pub enum Span<'s> {
    /// It is so long.
    Time(Duration),
    /// It lasts as long as something else: called once in the warm-up, to prepare that, and then again and again until it
    /// returns false. It does not block for longer than 50 ms.
    While(&'s mut dyn FnMut(Phase) -> Result<bool>),
}

/// Runs the workers, each on a thread of its own; calls `observe` right before each next phase.
///
/// # Errors
/// The first worker's, which ends the others; [`Error::Interrupted`]; that of the span.
pub fn conduct(
    workers: Vec<Worker<'_>>,
    warm_up: Duration,
    span: Span<'_>,
    mut observe: impl FnMut(Phase),
) -> Result<Vec<Tally>> {
    run(workers, |conductor| {
        let mut span = span;
        if let Span::While(lasts) = &mut span {
            lasts(Phase::WarmUp)?;
        }
        if !conductor.wait(warm_up)? {
            return Ok(());
        }
        observe(Phase::Measure);
        conductor.phases.set(Phase::Measure);
        match span {
            Span::Time(time) => drop(conductor.wait(time)?),
            Span::While(lasts) => {
                while lasts(Phase::Measure)? && conductor.look(Duration::ZERO)? {}
            }
        }
        // Before it is over: threads that end take their figures along.
        observe(Phase::Stop);
        Ok(())
    })
}

/// Runs the workers until `conducted` returns.
fn run(
    workers: Vec<Worker<'_>>,
    conducted: impl FnOnce(&mut Conductor<'_>) -> Result<()>,
) -> Result<Vec<Tally>> {
    let phases = Phases(AtomicU8::new(Phase::WarmUp as u8));
    let phases = &phases;
    thread::scope(|scope| {
        let (ended, ends) = channel();
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
        let conducted = conducted(&mut Conductor {
            phases,
            ends,
            running: threads.len(),
        });
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

/// The thread that waits while the workers run.
struct Conductor<'p> {
    phases: &'p Phases,
    ends: Receiver<bool>,
    running: usize,
}

impl Conductor<'_> {
    /// Waits for so long; false: the workers end before.
    fn wait(&mut self, time: Duration) -> Result<bool> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !self.look(left.min(LOOK_INTERVAL))? {
                return Ok(false);
            }
            if left.is_zero() {
                return Ok(true);
            }
        }
    }

    /// Waits for a worker's end, for at most so long; false: all of them end.
    fn look(&mut self, limit: Duration) -> Result<bool> {
        if signals::termination_requested() {
            return Err(Error::Interrupted);
        }
        match self.ends.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => Ok(true),
            // One of them has done all that it was to do. So have all, or they go on.
            Ok(true) if self.running > 1 => {
                self.running -= 1;
                Ok(true)
            }
            // The one that failed says why.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => Ok(false),
        }
    }
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
