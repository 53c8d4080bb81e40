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

/// Something beside the load: the part that counts is as long as it.
pub trait Episode {
    /// Prepares it during the warm-up.
    ///
    /// # Errors
    /// When it cannot begin.
    fn prepare(&mut self) -> Result<()>;

    /// Begins it.
    ///
    /// # Errors
    /// When it does not begin.
    fn begin(&mut self) -> Result<()>;

    /// Waits for its end, for at most so long; whether it has ended.
    ///
    /// # Errors
    /// When it fails.
    fn wait(&mut self, limit: Duration) -> Result<bool>;
}

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
    run(workers, |conductor| {
        for (duration, next) in [(warm_up, Phase::Measure), (time, Phase::Stop)] {
            if !conductor.wait(duration)? {
                return Ok(());
            }
            // Before it is over: threads that end take their figures along.
            observe(next)?;
            conductor.phases.set(next);
        }
        Ok(())
    })
}

/// As [`conduct`], while an episode lasts that begins after the warm-up.
///
/// # Errors
/// As for [`conduct`]; the episode's.
pub fn conduct_during(
    workers: Vec<Worker<'_>>,
    warm_up: Duration,
    episode: &mut impl Episode,
) -> Result<Vec<Tally>> {
    run(workers, |conductor| {
        episode.prepare()?;
        if !conductor.wait(warm_up)? {
            return Ok(());
        }
        conductor.phases.set(Phase::Measure);
        episode.begin()?;
        while !episode.wait(LOOK_INTERVAL)? {
            if !conductor.look(Duration::ZERO)? {
                return Ok(());
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends once a worker has seen its phase, or never.
    struct UntilSeen<'s> {
        seen: &'s AtomicU8,
        begins: Result<()>,
        ends: bool,
    }

    impl Episode for UntilSeen<'_> {
        fn prepare(&mut self) -> Result<()> {
            assert_ne!(self.seen.load(Ordering::Relaxed), Phase::Measure as u8);
            Ok(())
        }

        fn begin(&mut self) -> Result<()> {
            std::mem::replace(&mut self.begins, Ok(()))
        }

        fn wait(&mut self, _limit: Duration) -> Result<bool> {
            thread::yield_now();
            let seen = self.seen.load(Ordering::Relaxed);
            Ok(self.ends && seen == Phase::Measure as u8)
        }
    }

    /// Shows the phases that it sees, until the last one.
    fn watch(seen: &AtomicU8) -> Worker<'_> {
        Box::new(|phases| {
            while phases.now() != Phase::Stop {
                seen.store(phases.now() as u8, Ordering::Relaxed);
                thread::yield_now();
            }
            Ok(Tally::default())
        })
    }

    #[test]
    fn load_counts_from_the_begin_of_an_episode_to_its_end() {
        let seen = AtomicU8::new(Phase::WarmUp as u8);
        let mut episode = UntilSeen {
            seen: &seen,
            begins: Ok(()),
            ends: true,
        };
        let tallies = conduct_during(vec![watch(&seen)], Duration::ZERO, &mut episode).unwrap();
        assert_eq!(tallies.len(), 1);
        assert_eq!(seen.into_inner(), Phase::Measure as u8);
    }

    #[test]
    fn failed_worker_ends_an_episode() {
        let seen = AtomicU8::new(Phase::WarmUp as u8);
        let mut endless = UntilSeen {
            seen: &seen,
            begins: Ok(()),
            ends: false,
        };
        let failing: Worker<'_> = Box::new(|_| Err(Error::Gone));
        let workers = vec![watch(&seen), failing];
        let failed = conduct_during(workers, Duration::ZERO, &mut endless);
        assert!(matches!(failed, Err(Error::Gone)), "{failed:?}");
    }

    #[test]
    fn episode_that_does_not_begin_ends_the_load() {
        let seen = AtomicU8::new(Phase::WarmUp as u8);
        let mut episode = UntilSeen {
            seen: &seen,
            begins: Err(Error::Requests("no".to_owned())),
            ends: true,
        };
        let failed = conduct_during(vec![watch(&seen)], Duration::ZERO, &mut episode);
        assert_eq!(failed.unwrap_err().to_string(), "no");
    }
}
