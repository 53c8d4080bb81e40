//! Threads that repeat some work while a test does something else, and end with it, also if it fails.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A thread that repeats some work until this is dropped, which joins it. A panic of the work is one of the drop.
#[derive(Debug)]
pub struct RepeatingThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RepeatingThread {
    /// Starts the thread. The work gets the number of the round.
    pub fn start(mut work: impl FnMut(u16) + Send + 'static) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let is_stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut round = 0u16;
            while !is_stopped.load(Ordering::Relaxed) {
                work(round);
                round = round.wrapping_add(1);
            }
        });
        RepeatingThread {
            stop,
            thread: Some(thread),
        }
    }

    /// Whether the work has panicked.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for RepeatingThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(panic)) = ended
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

/// Runs `test` while another thread repeats `work`. A panic of either one panics the caller.
pub fn while_repeating<T>(mut work: impl FnMut() + Send, test: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // The scope waits for the thread also if the test panics.
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        });
        test()
    })
}

/// Sets the flag when it is dropped.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU16;
    use std::sync::mpsc;

    use super::*;
    use crate::deadline::eventually;

    #[test]
    fn thread_repeats_its_work_until_it_is_dropped() {
        let (sender, rounds) = mpsc::channel();
        let thread = RepeatingThread::start(move |round| sender.send(round).unwrap());
        let first: Vec<u16> = rounds.iter().take(3).collect();
        assert_eq!(first, [0, 1, 2]);
        assert!(!thread.has_panicked());
        drop(thread);
        // The sender is gone with the work.
        rounds.iter().for_each(drop);
    }

    #[test]
    #[should_panic(expected = "the work has failed")]
    fn panic_of_the_work_is_one_of_the_drop() {
        let thread = RepeatingThread::start(|_| panic!("the work has failed"));
        eventually("the panic", || thread.has_panicked());
        drop(thread);
    }

    #[test]
    #[should_panic(expected = "the test has failed")]
    fn drop_during_a_panic_does_not_panic_again() {
        let thread = RepeatingThread::start(|_| panic!("the work has failed"));
        eventually("the panic", || thread.has_panicked());
        panic!("the test has failed");
    }

    #[test]
    fn test_runs_while_another_thread_repeats_the_work() {
        let rounds = AtomicU16::new(0);
        let work = || _ = rounds.fetch_add(1, Ordering::Relaxed);
        let done = while_repeating(work, || {
            eventually("three rounds", || rounds.load(Ordering::Relaxed) > 2);
            7
        });
        assert_eq!(done, 7);
    }

    #[test]
    #[should_panic(expected = "the test has failed")]
    fn panic_of_the_test_ends_the_repeated_work() {
        while_repeating(thread::yield_now, || panic!("the test has failed"));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn panic_of_the_repeated_work_panics_the_caller() {
        let rounds = AtomicU16::new(0);
        let work = || {
            rounds.fetch_add(1, Ordering::Relaxed);
            panic!("the first round");
        };
        while_repeating(work, || {
            eventually("a round", || rounds.load(Ordering::Relaxed) > 0);
        });
    }
}
