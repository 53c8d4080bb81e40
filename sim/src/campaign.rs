//! Many seeds, on one thread or several.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::run::run;
use crate::trace::Trace;
use crate::world::Coverage;

/// Time between two reports of progress.
const REPORT: Duration = Duration::from_millis(200);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// For how long at most.
    pub time: Option<Duration>,
    /// Threads.
    pub jobs: u32,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Seeds that were run.
    pub seeds: u64,
    /// What they saw, together.
    pub seen: Coverage,
    /// The smallest seed that something was found with, of those that were run.
    pub found: Option<(u64, String)>,
    /// How long it took.
    pub took: Duration,
}

impl Results {
    fn add(&mut self, seed: u64, ran: Result<Coverage, String>) {
        self.seeds += 1;
        match ran {
            Ok(seen) => self.seen.add(seen),
            Err(found) if self.found.as_ref().is_none_or(|(first, _)| seed < *first) => {
                self.found = Some((seed, found));
            }
            Err(_) => {}
        }
    }
}

impl Campaign {
    /// Runs it until something is found. `report` is called from time to time with the results so far.
    pub fn run(self, report: impl Fn(&Results) + Sync) -> Results {
        let started = Instant::now();
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let results = Mutex::new((Results::default(), started));
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let out_of_time = self.time.is_some_and(|time| started.elapsed() >= time);
                if number >= self.seeds || out_of_time {
                    return;
                }
                let seed = self.first.wrapping_add(number);
                let ran = run(&Plan::of(seed), Trace::default());
                if ran.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                let (results, reported) = &mut *results;
                results.add(seed, ran);
                if reported.elapsed() >= REPORT {
                    *reported = Instant::now();
                    results.took = started.elapsed();
                    report(results);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.jobs {
                scope.spawn(work);
            }
            work();
        });
        let (mut results, _) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.took = started.elapsed();
        results
    }
}
