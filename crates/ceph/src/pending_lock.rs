//! An exclusive lock that an image's thread is taking: how long it tries, and who gets the result.

use std::mem;
use std::time::{Duration, Instant};

use engine::Errno;

use crate::LockError;

/// How long the cluster keeps the lock of a client that has died, with a margin: `osd_client_watch_timeout` is 30 s by default.
const DEAD_OWNER_TIMEOUT: Duration = Duration::from_secs(45);

/// Called on the image's thread with the result of [`Image::spawn_lock`](crate::Image::spawn_lock).
pub type LockDone = Box<dyn FnOnce(Result<(), LockError>) + Send>;

/// An exclusive lock that is being taken. Requests wait for its result, so there is one even if an attempt panics: then this is dropped.
pub(crate) struct PendingLock {
    image_name: String,
    begin: Instant,
    patience: Duration,
    is_wanted: Box<dyn Fn() -> bool + Send>,
    /// `None` only at the end.
    done: Option<LockDone>,
    /// It is in the log that the cluster does not answer.
    has_warned: bool,
}

impl PendingLock {
    pub(crate) fn new(
        image_name: String,
        patience: Duration,
        is_wanted: impl Fn() -> bool + Send + 'static,
        done: LockDone,
    ) -> Self {
        Self {
            image_name,
            begin: Instant::now(),
            patience,
            is_wanted: Box::new(is_wanted),
            done: Some(done),
            has_warned: false,
        }
    }

    /// Whether there is another attempt after one with this result.
    pub(crate) fn tries_again(&mut self, result: &Result<(), LockError>) -> bool {
        let waited = self.begin.elapsed();
        match result {
            Err(LockError::Held { is_alive: true, .. }) => waited < self.patience,
            Err(LockError::Held { .. }) => waited < self.patience.max(DEAD_OWNER_TIMEOUT),
            Err(
                error @ LockError::Failed {
                    errno: Errno::TIMEDOUT,
                    ..
                },
            ) => {
                if !mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        image = self.image_name, %error,
                        advice = "look at the cluster's monitors (ceph -s): requests that change the image wait for them",
                        "the cluster does not answer"
                    );
                }
                (self.is_wanted)()
            }
            _ => false,
        }
    }

    /// Ends it.
    pub(crate) fn finish(mut self, result: Result<(), LockError>) {
        if let Some(done) = self.done.take() {
            done(result);
        }
    }
}

impl Drop for PendingLock {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(LockError::Failed {
                image: mem::take(&mut self.image_name),
                errno: Errno::IO,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use test_support::deadline::STUCK_AFTER;

    use super::*;
    use crate::waiting_calls::WaitingCalls;

    fn failure(errno: Errno) -> Result<(), LockError> {
        Err(LockError::Failed {
            image: "pool/image".to_owned(),
            errno,
        })
    }

    #[test]
    fn attempt_that_panics_passes_an_error_on() {
        let (sender, results) = mpsc::channel();
        let done = Box::new(move |result| sender.send(result).unwrap());
        let is_wanted = || panic!("an attempt may panic");
        let mut pending =
            PendingLock::new("pool/image".to_owned(), Duration::ZERO, is_wanted, done);
        let calls = WaitingCalls::start().unwrap();
        calls.post(move || {
            pending.tries_again(&failure(Errno::TIMEDOUT));
        });
        let result = results.recv_timeout(STUCK_AFTER).unwrap();
        assert_eq!(result, failure(Errno::IO));
    }

    #[test]
    fn result_is_passed_on_once() {
        let (sender, results) = mpsc::channel();
        let done = Box::new(move |result| sender.send(result).unwrap());
        let pending = PendingLock::new("pool/image".to_owned(), Duration::ZERO, || true, done);
        pending.finish(Ok(()));
        assert_eq!(results.iter().collect::<Vec<_>>(), [Ok(())]);
    }
}
