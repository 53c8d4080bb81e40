//! The set of woken async tasks, which the executor polls next: any thread adds to it.
//!
//! There is a bit for each task, and a flag that one of them may be set, so that a loop without woken tasks reads one word. A
//! waker sets its bit, then the flag, then wakes the loop; the executor clears the flag, then takes the bits.
//! So a bit that is set after it was taken is found in the next phase, since the flag is set again.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::Wake as WakeLoop;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The woken async tasks of an iothread, as a bit for each.
pub(super) struct WokenTasks {
    /// A bit for each task.
    words: Box<[AtomicU64]>,
    /// The flag: a bit may be set.
    has_woken: AtomicBool,
    wake_loop: WakeLoop,
}

/// The waker of one async task: adds it to the woken ones, and wakes the loop.
struct TaskWaker {
    woken: Arc<WokenTasks>,
    task: u32,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.woken.insert_without_waking_loop(self.task) {
            (self.woken.wake_loop)();
        }
    }
}

impl WokenTasks {
    /// A set for so many tasks. `wake_loop` wakes the iothread's loop, from any thread.
    pub fn new(tasks: u32, wake_loop: WakeLoop) -> Arc<Self> {
        let words = tasks.div_ceil(u64::BITS);
        Arc::new(WokenTasks {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            has_woken: AtomicBool::new(false),
            wake_loop,
        })
    }

    /// A waker of a task, for any number of its futures.
    pub fn waker(self: &Arc<Self>, task: u32) -> Waker {
        Waker::from(Arc::new(TaskWaker {
            woken: self.clone(),
            task,
        }))
    }

    /// Adds a task. False: it was in the set already.
    pub fn insert_without_waking_loop(&self, task: u32) -> bool {
        let bit = 1 << (task % u64::BITS);
        let word = &self.words[(task / u64::BITS) as usize];
        let is_new = word.fetch_or(bit, Ordering::AcqRel) & bit == 0;
        if is_new {
            self.set_has_woken_flag();
        }
        is_new
    }

    /// Sets the flag. A store would hide the flag of another waker from [`take_batch`](Self::take_batch), and with it, by the
    /// memory model of the language, the other one's bit. A swap passes both on.
    fn set_has_woken_flag(&self) {
        self.has_woken.swap(true, Ordering::Release);
    }

    /// Whether a task may be in the set.
    pub fn may_have_any(&self) -> bool {
        self.has_woken.load(Ordering::Acquire)
    }

    /// Moves up to `budget` tasks into `out`, beginning with the word at `first`, and returns the word to begin with the
    /// next time.
    pub fn take_batch(&self, first: usize, budget: usize, out: &mut Vec<u32>) -> usize {
        if !self.has_woken.swap(false, Ordering::AcqRel) {
            return first;
        }
        let count = self.words.len();
        for index in (first..count).chain(0..first) {
            let word = &self.words[index];
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                if out.len() == budget {
                    word.fetch_or(bits, Ordering::AcqRel);
                    self.set_has_woken_flag();
                    return index;
                }
                // There are fewer words than 2^26.
                #[allow(clippy::cast_possible_truncation, reason = "see above")]
                out.push(index as u32 * u64::BITS + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_leaves_the_rest_for_the_next_call_which_begins_there() {
        let woken = WokenTasks::new(256, Arc::new(|| ()));
        for task in [3, 66, 67, 200] {
            woken.insert_without_waking_loop(task);
        }
        let mut out = Vec::new();
        let next = woken.take_batch(0, 2, &mut out);
        assert_eq!((&out[..], next), (&[3, 66][..], 1));
        assert!(woken.may_have_any());
        woken.insert_without_waking_loop(0);
        out.clear();
        let next = woken.take_batch(next, 2, &mut out);
        assert_eq!(out, [67, 200], "not the one at the front again");
        out.clear();
        woken.take_batch(next, 2, &mut out);
        assert_eq!(out, [0]);
        assert!(!woken.may_have_any());
    }
}
