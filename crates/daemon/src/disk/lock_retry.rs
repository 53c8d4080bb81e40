//! Retries for images that are still locked when the program starts, by a process that has only just ended.
//!
//! Requests in an io_uring outlive their process until the disk has answered, and keep the image open and locked. So the process
//! that a supervisor starts as a replacement may come too early, and retries for a moment. Commands of monitors are not retried:
//! their clients get the error at once, and can retry themselves.

use std::thread;
use std::time::{Duration, Instant};

use block::NodeError;

/// Time limit for all images together. A disk that does not answer for longer is left to the supervisor.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Time between two tries.
const INTERVAL: Duration = Duration::from_millis(10);

/// The retries of one start of the program.
#[derive(Default)]
pub(crate) struct ImageLockRetry {
    /// When it gives up; set by the first image that is locked.
    give_up_at: Option<Instant>,
}

impl ImageLockRetry {
    /// Waits one interval if the error is a lock of another process, and the time limit has not passed. True: try again.
    pub fn wait_before_retry(&mut self, error: &NodeError) -> bool {
        // A lock of this process will not go away.
        if !matches!(error, NodeError::Locked { here: false, .. }) {
            return false;
        }
        let now = Instant::now();
        let give_up_at = *self.give_up_at.get_or_insert_with(|| {
            tracing::info!(
                %error, seconds = TIME_LIMIT.as_secs(),
                "the image is locked: trying again, in case its last user has only just ended"
            );
            now + TIME_LIMIT
        });
        if now >= give_up_at {
            return false;
        }
        thread::sleep(INTERVAL);
        true
    }
}
