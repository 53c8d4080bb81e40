//! The thread that makes the calls of librados and librbd that wait, each with a deadline for its caller.
//!
//! A cluster that does not answer keeps such a call for an arbitrary time. The caller goes on at its deadline; the call is then
//! abandoned: it is left out if it has not begun, otherwise its result is dropped on the thread when it ends.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::Errno;

use crate::thread_launcher::spawn_thread;

/// The kernel shows it as the thread's name. Threads of librados have names of their own.
const THREAD_NAME: &str = "ceph";

/// A call, to be made on the thread.
type Call = Box<dyn FnOnce() + Send>;

/// The thread, which ends after all calls when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingCalls {
    calls: Sender<Call>,
}

impl WaitingCalls {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (calls, received): (_, Receiver<Call>) = mpsc::channel();
        spawn_thread(THREAD_NAME, move || {
            for call in received {
                call();
            }
        })?;
        Ok(Self { calls })
    }

    /// Makes a call, and waits for its result until the timeout.
    ///
    /// Error: [`Errno::TIMEDOUT`]; the call is abandoned.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Errno> {
        let outcome = Arc::new(Outcome::default());
        let for_thread = Arc::clone(&outcome);
        self.post(move || {
            if !for_thread.is_abandoned() {
                for_thread.finish(call());
            }
        });
        outcome.wait(timeout).ok_or(Errno::TIMEDOUT)
    }

    /// Makes a call later, without waiting for it.
    pub(crate) fn post(&self, call: impl FnOnce() + Send + 'static) {
        if self.calls.send(Box::new(call)).is_err() {
            // Only a panic ends the thread earlier.
            tracing::error!("the thread for calls to Ceph has ended: a call is lost");
        }
    }
}

/// The result of a call, between its caller and the thread.
struct Outcome<T> {
    state: Mutex<State<T>>,
    finished: Condvar,
}

enum State<T> {
    Pending,
    Abandoned,
    Finished(T),
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State::Pending),
            finished: Condvar::new(),
        }
    }
}

impl<T> Outcome<T> {
    fn is_abandoned(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*state, State::Abandoned)
    }

    /// On the thread: stores the result, or drops it here if there is no caller any more.
    fn finish(&self, result: T) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Pending) {
            *state = State::Finished(result);
            self.finished.notify_one();
        } else {
            // Dropping may wait: without the lock.
            drop(state);
            drop(result);
        }
    }

    /// In the caller: the result, or `None` at the end of the time.
    fn wait(&self, timeout: Duration) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(*state, State::Pending) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .finished
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        match std::mem::replace(&mut *state, State::Abandoned) {
            State::Finished(result) => Some(result),
            State::Pending | State::Abandoned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use test_support::deadline::STUCK_AFTER;

    use super::*;

    fn start() -> WaitingCalls {
        WaitingCalls::start().unwrap()
    }

    /// Records the thread that drops it.
    struct DropRecord(Arc<Mutex<Option<ThreadId>>>);

    impl Drop for DropRecord {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(thread::current().id());
        }
    }

    #[test]
    fn calls_run_on_one_thread_which_makes_all_before_it_ends() {
        let calls = start();
        let id = || thread::current().id();
        let first = calls.call(STUCK_AFTER, id).unwrap();
        assert_eq!(calls.call(STUCK_AFTER, id), Ok(first));
        assert_ne!(first, thread::current().id());
        let (made, last) = mpsc::channel();
        calls.post(move || made.send(()).unwrap());
        drop(calls);
        last.recv_timeout(STUCK_AFTER).unwrap();
    }

    #[test]
    fn a_caller_goes_on_at_its_deadline_and_the_thread_drops_the_result() {
        let calls = start();
        let (resume, paused) = mpsc::channel::<()>();
        let dropped = Arc::new(Mutex::new(None));
        let record = DropRecord(Arc::clone(&dropped));
        let abandoned = calls.call(Duration::from_millis(1), move || {
            let _ = paused.recv();
            record
        });
        assert_eq!(abandoned.err(), Some(Errno::TIMEDOUT));
        resume.send(()).unwrap();
        let of_calls = calls.call(STUCK_AFTER, || thread::current().id());
        assert_eq!(*dropped.lock().unwrap(), of_calls.ok());
    }

    #[test]
    fn a_call_that_has_not_begun_at_its_deadline_is_left_out() {
        let calls = start();
        let (resume, paused) = mpsc::channel::<()>();
        calls.post(move || {
            let _ = paused.recv();
        });
        let (made, count) = mpsc::channel();
        let late = calls.call(Duration::from_millis(1), move || made.send(()));
        assert_eq!(late, Err(Errno::TIMEDOUT));
        resume.send(()).unwrap();
        calls.call(STUCK_AFTER, || ()).unwrap();
        assert!(count.try_recv().is_err());
    }
}
