//! Many seeds, on one thread or several.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::plan::Plan;
use crate::run::run;
use crate::trace::Trace;
use crate::world::Coverage;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Seeds that were run.
    pub seeds: u64,
    /// What they saw, together.
    pub seen: Coverage,
    /// The smallest seed that something was found with, of those that were run.
    pub found: Option<u64>,
    /// How long it took.
    pub took: Duration,
}

/// Runs seeds until something is found.
#[must_use]
pub fn run_seeds(options: &Options) -> Results {
    let started = Instant::now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let results = Mutex::new(Results::default());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let out_of_time = options.time.is_some_and(|time| started.elapsed() >= time);
            if number >= options.seeds || out_of_time {
                return;
            }
            let seed = options.first.wrapping_add(number);
            let ran = run(&Plan::of(seed), Trace::default());
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.seeds += 1;
            match ran {
                Ok(seen) => results.seen.add_all(&seen),
                Err(_) => {
                    stop.store(true, Ordering::Relaxed);
                    results.found = Some(results.found.map_or(seed, |found| found.min(seed)));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..options.jobs {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.took = started.elapsed();
    results
}
