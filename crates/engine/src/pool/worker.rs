//! The loop of a thread of the worker pool: it takes jobs, runs them, and adds their completions for the owner.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Job;
use super::shared::PoolShared;
use crate::{Completion, Errno};

/// Runs jobs until the pool ends or has too many threads. A job that panics completes with `EIO`.
pub(super) fn run_jobs<J: Job>(shared: &PoolShared<J>) {
    let mut ended = None;
    while let Some(job) = shared.next_job(ended) {
        let token = job.token();
        ended = Some(job.disk());
        // A job is consumed whether it returns or panics, so no broken state of it remains.
        let completion = catch_unwind(AssertUnwindSafe(|| job.run())).unwrap_or_else(|_| {
            tracing::error!(
                token,
                advice = "this is a bug in blockplane: report it",
                "a job of the worker pool panicked: its request fails with EIO"
            );
            Completion {
                token,
                result: Err(Errno::IO),
            }
        });
        shared.add_completion(completion);
    }
}
