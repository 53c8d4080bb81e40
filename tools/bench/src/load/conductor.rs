//! The conductor of a measurement's course: warm-up, the part that counts, the end.
//!
//! Workers run without looking at a clock to see whether they are done: the conductor tells them
//! through one word that they read between batches.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use commands::signals;

use super::meter::Tally;
use super::phase::{Phase, Phases};
use super::{Measured, ServerUsage, Times};
use crate::error::{Error, Result};
use crate::procfs;

/// Interval at which the conductor checks for Ctrl-C.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// One thread's part of the load: runs until [`Phase::Stop`], then says what it did.
pub(super) type Worker<'w> = Box<dyn FnOnce(&Phases) -> Result<Tally> + Send + 'w>;

/// Runs the workers, each on a thread of its own, and samples what the process `pid` uses in the part that counts. One whose statistics
/// cannot be read (it belongs to another user) is measured without them.
///
/// # Errors
/// The first worker's, which ends the others; [`Error::Interrupted`].
pub(super) fn conduct(
    workers: Vec<Worker<'_>>,
    times: Times,
    pid: Option<u32>,
    block_bytes: u32,
) -> Result<Measured> {
    let phases = &Phases::default();
    thread::scope(|scope| {
        let (ended, ends) = channel();
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let ended = Ended(false, ended.clone());
                scope.spawn(move || {
                    let mut ended = ended;
                    let tally = worker(phases);
                    ended.0 = tally.is_ok();
                    tally
                })
            })
            .collect();
        let running = threads.len();
        let mut conductor = Conductor { ends, running };
        let conducted = conductor.conduct(phases, times, pid);
        phases.set(Phase::Stop);
        let mut failed = None;
        let mut tallies = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(Ok(tally)) => tallies.push(tally),
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        let server = conducted?;
        match failed {
            Some(error) => Err(error),
            None => Ok(Measured {
                block_bytes,
                threads: tallies,
                server,
            }),
        }
    })
}

/// The thread that waits while the workers run.
struct Conductor {
    ends: Receiver<bool>,
    running: usize,
}

impl Conductor {
    fn conduct(
        &mut self,
        phases: &Phases,
        times: Times,
        pid: Option<u32>,
    ) -> Result<Option<ServerUsage>> {
        if !self.wait(times.warm_up)? {
            return Ok(None);
        }
        let usage = || pid.and_then(|pid| procfs::threads(pid).ok());
        let (before, since) = (usage(), Instant::now());
        phases.set(Phase::Measure);
        self.wait(times.time)?;
        // Before it is over: threads that end take their figures along.
        let used = before.zip(usage());
        Ok(used.map(|(before, after)| {
            let used = procfs::used_between(&before, &after);
            ServerUsage {
                cpu_ns: used.cpu_ns,
                busiest: used.busiest_ns as f64 / since.elapsed().as_nanos() as f64,
            }
        }))
    }

    /// Waits for so long; false: the workers end before.
    fn wait(&mut self, time: Duration) -> Result<bool> {
        let until = Instant::now() + time;
        loop {
            if signals::termination_requested() {
                return Err(Error::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.ends.recv_timeout(left.min(LOOK_INTERVAL)) {
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(true),
                Err(RecvTimeoutError::Timeout) => {}
                // One of them has done all that it was to do. So have all, or they go on.
                Ok(true) if self.running > 1 => self.running -= 1,
                // The one that failed says why.
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
    }
}

/// Tells the conductor of a worker's end and whether it was a good one, also of one that panics.
struct Ended(bool, Sender<bool>);

impl Drop for Ended {
    fn drop(&mut self) {
        // The conductor may have left already.
        let _ = self.1.send(self.0);
    }
}
