//! Calls of librados and librbd that wait, each with a deadline for its caller, on a thread that makes them in order.
//!
//! A cluster that does not answer keeps such a call for an arbitrary time. The caller goes on at its deadline; the call is then
//! abandoned: it is left out if it has not begun, otherwise its result is dropped on the thread when it ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::Errno;

use crate::thread_launcher::spawn_thread;

/// The kernel shows it as the thread's name. Threads of librados have names of their own.
const THREAD_NAME: &str = "ceph";

/// How often a caller asks for a deadline that may change.
const DEADLINE_POLL: Duration = Duration::from_millis(100);

/// A call, to be made on the thread.
type Call = Box<dyn FnOnce() + Send>;

/// Calls that are made one after another, on a thread that exists as long as this. So making one does not depend on a thread that may
/// not start. Those that are queued when this is dropped are made too.
pub(crate) struct WaitingCalls {
    calls: Sender<Call>,
}

impl WaitingCalls {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (calls, received) = channel();
        spawn_thread(THREAD_NAME, move || make_calls(&received))?;
        Ok(Self { calls })
    }

    /// Makes a call, and waits for its result until the timeout.
    ///
    /// Errors: [`Errno::TIMEDOUT`]; the call is abandoned. [`Errno::IO`] if the call panics, which is in the log.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Errno> {
        let deadline = Instant::now() + timeout;
        self.call_until(|| deadline, call)
    }

    /// The same with a deadline that may come closer while the caller waits.
    pub(crate) fn call_until<T: Send + 'static>(
        &self,
        deadline: impl Fn() -> Instant,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Errno> {
        let outcome = Arc::new(Outcome::default());
        let for_thread = FinishOnDrop(Arc::clone(&outcome));
        self.post(move || {
            if !for_thread.0.is_abandoned() {
                for_thread.0.finish(Ok(call()));
            }
        });
        outcome.wait(deadline).unwrap_or(Err(Errno::TIMEDOUT))
    }

    /// Makes a call later, without waiting for it.
    pub(crate) fn post(&self, call: impl FnOnce() + Send + 'static) {
        // The thread does not end before.
        let _ = self.calls.send(Box::new(call));
    }
}

/// Makes calls until there are no more and the sender has gone. One that panics, which is in the log, does not prevent the others.
fn make_calls(calls: &Receiver<Call>) {
    for call in calls {
        let _ = catch_unwind(AssertUnwindSafe(call));
    }
}

/// The thread's end of an outcome. Dropping it finishes a call that has panicked, so that its caller does not wait for the deadline.
struct FinishOnDrop<T>(Arc<Outcome<T>>);

impl<T> Drop for FinishOnDrop<T> {
    fn drop(&mut self) {
        // Nothing changes if it is finished.
        self.0.finish(Err(Errno::IO));
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
    Finished(Result<T, Errno>),
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

    /// On the thread: stores the result, or drops it here if there is one, or no caller any more.
    fn finish(&self, result: Result<T, Errno>) {
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

    /// In the caller: the result, or `None` at the deadline.
    fn wait(&self, deadline: impl Fn() -> Instant) -> Option<Result<T, Errno>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(*state, State::Pending) {
            let left = deadline().saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .finished
                .wait_timeout(state, left.min(DEADLINE_POLL))
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
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use test_support::deadline::STUCK_AFTER;

    use super::*;

    /// Records the thread that drops it.
    struct DropRecord(Arc<Mutex<Option<ThreadId>>>);

    impl Drop for DropRecord {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(thread::current().id());
        }
    }

    fn start() -> WaitingCalls {
        WaitingCalls::start().unwrap()
    }

    #[test]
    fn calls_run_in_order_on_one_thread_which_makes_all_before_it_ends() {
        let calls = start();
        let id = || thread::current().id();
        let first = calls.call(STUCK_AFTER, id).unwrap();
        assert_ne!(first, thread::current().id());
        calls.post(|| panic!("a call may panic"));
        assert_eq!(calls.call(STUCK_AFTER, id), Ok(first));
        let (made, numbers) = mpsc::channel();
        for number in 0..9 {
            let made = made.clone();
            calls.post(move || made.send(number).unwrap());
        }
        drop((calls, made));
        let received = (0..9).map(|_| numbers.recv_timeout(STUCK_AFTER).unwrap());
        assert!(received.eq(0..9));
        numbers.recv_timeout(STUCK_AFTER).unwrap_err();
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
        calls.call(STUCK_AFTER, || ()).unwrap();
        let dropped_on = dropped.lock().unwrap().unwrap();
        assert_ne!(dropped_on, thread::current().id());
    }

    #[test]
    fn a_call_that_panics_fails_at_once() {
        let calls = start();
        let failed = calls.call(STUCK_AFTER, || panic!("a call may panic"));
        assert_eq!(failed, Err::<(), _>(Errno::IO));
    }

    #[test]
    fn a_deadline_may_come_closer_while_the_caller_waits() {
        let calls = start();
        let (resume, paused) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let far = Instant::now() + 2 * STUCK_AFTER;
        let deadline = || match begins.try_recv() {
            Ok(()) => Instant::now(),
            Err(_) => far,
        };
        let abandoned = calls.call_until(deadline, move || {
            let _ = begun.send(());
            let _ = paused.recv_timeout(STUCK_AFTER);
        });
        assert_eq!(abandoned, Err(Errno::TIMEDOUT));
        drop(resume);
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
