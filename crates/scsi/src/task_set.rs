//! The order of tasks (SAM-5, section 8): which may go ahead, and which wait for others.
//!
//! One thread has it: what order means across queues of a transport is that transport's business. As long as nobody asks for an
//! order it is a counter.

use std::collections::VecDeque;

/// Comparison a task is to be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// After ordered ones that came before, and not beside one of the head of the queue.
    Simple,
    /// After all that came before, and before all that come after, but for those at the head.
    Ordered,
    /// At once.
    HeadOfQueue,
}

/// May it go?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Yes.
    Go,
    /// When [`TaskSet::done`] names it.
    Wait,
}

/// Tasks under way, and tasks that wait. `T` is what the adapter calls them.
#[derive(Debug)]
pub struct TaskSet<T> {
    in_flight: u32,
    /// Those under way that simple ones wait for: an ordered one, and all that went to the head.
    blocking: u32,
    waiting: VecDeque<(T, Attribute)>,
}

impl<T> Default for TaskSet<T> {
    fn default() -> Self {
        TaskSet {
            in_flight: 0,
            blocking: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl<T: Copy + PartialEq> TaskSet<T> {
    /// A task comes.
    #[inline]
    pub fn admit(&mut self, task: T, attribute: Attribute) -> Admission {
        let go = match attribute {
            Attribute::HeadOfQueue => true,
            _ => self.waiting.is_empty() && self.fits(attribute),
        };
        if go {
            self.enter(attribute);
            Admission::Go
        } else {
            self.waiting.push_back((task, attribute));
            Admission::Wait
        }
    }

    /// Whether simple tasks may go at once, as long as no other comes between.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.waiting.is_empty() && self.blocking == 0
    }

    /// So many simple tasks went while it [was open](Self::is_open).
    pub fn started(&mut self, tasks: u32) {
        self.in_flight += tasks;
    }

    /// Whether nobody waits for those that go.
    #[must_use]
    pub fn none_waiting(&self) -> bool {
        self.waiting.is_empty()
    }

    /// So many simple tasks are over, while nobody waited.
    pub fn finished(&mut self, tasks: u32) {
        debug_assert!(self.waiting.is_empty(), "who waits is told");
        self.in_flight = self.in_flight.saturating_sub(tasks);
    }

    fn fits(&self, attribute: Attribute) -> bool {
        match attribute {
            Attribute::Ordered => self.in_flight == 0,
            Attribute::Simple | Attribute::HeadOfQueue => self.blocking == 0,
        }
    }

    fn enter(&mut self, attribute: Attribute) {
        self.in_flight += 1;
        self.blocking += u32::from(attribute != Attribute::Simple);
    }

    /// A task that went is over. Calls `go` with each that may go now.
    #[inline]
    pub fn done(&mut self, attribute: Attribute, go: impl FnMut(T)) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if attribute != Attribute::Simple {
            self.blocking = self.blocking.saturating_sub(1);
        }
        if !self.waiting.is_empty() {
            self.release(go);
        }
    }

    #[cold]
    fn release(&mut self, mut go: impl FnMut(T)) {
        while let Some(&(task, attribute)) = self.waiting.front() {
            if !self.fits(attribute) {
                return;
            }
            self.waiting.pop_front();
            self.enter(attribute);
            go(task);
        }
    }

    /// A task that waits does so no longer. Calls `go` with each that may go now. False: it did not wait.
    pub fn forget(&mut self, task: T, go: impl FnMut(T)) -> bool {
        let Some(at) = self.waiting.iter().position(|(one, _)| *one == task) else {
            return false;
        };
        self.waiting.remove(at);
        self.release(go);
        true
    }

    /// Tasks that wait.
    pub fn waiting(&self) -> impl Iterator<Item = T> {
        self.waiting.iter().map(|(task, _)| *task)
    }
}

#[cfg(test)]
mod tests {
    use super::Attribute::{HeadOfQueue, Ordered, Simple};
    use super::*;

    fn done(set: &mut TaskSet<u32>, attribute: Attribute) -> Vec<u32> {
        let mut went = Vec::new();
        set.done(attribute, |task| went.push(task));
        went
    }

    #[test]
    fn simple_tasks_pass_each_other_and_nothing_else() {
        let mut set = TaskSet::default();
        assert_eq!(set.admit(1, Simple), Admission::Go);
        assert_eq!(set.admit(2, Simple), Admission::Go);
        assert_eq!(set.admit(3, Ordered), Admission::Wait);
        assert_eq!(set.admit(4, Simple), Admission::Wait);
        assert_eq!(set.admit(5, Simple), Admission::Wait);
        assert_eq!(set.admit(6, Ordered), Admission::Wait);
        assert_eq!(set.admit(7, HeadOfQueue), Admission::Go);
        assert_eq!(done(&mut set, Simple), []);
        assert_eq!(done(&mut set, Simple), []);
        assert_eq!(done(&mut set, HeadOfQueue), [3]);
        assert_eq!(done(&mut set, Ordered), [4, 5]);
        assert_eq!(done(&mut set, Simple), []);
        assert_eq!(done(&mut set, Simple), [6]);
    }

    #[test]
    fn nobody_passes_what_went_to_the_head() {
        let mut set = TaskSet::default();
        assert_eq!(set.admit(1, HeadOfQueue), Admission::Go);
        assert_eq!(set.admit(2, Simple), Admission::Wait);
        assert_eq!(set.admit(3, HeadOfQueue), Admission::Go);
        assert_eq!(set.admit(4, Ordered), Admission::Wait);
        assert_eq!(done(&mut set, HeadOfQueue), []);
        assert_eq!(done(&mut set, HeadOfQueue), [2]);
        assert_eq!(done(&mut set, Simple), [4]);
        // While an ordered one goes, one goes to the head: who comes behind waits for both.
        assert_eq!(set.admit(5, HeadOfQueue), Admission::Go);
        assert_eq!(set.admit(6, Simple), Admission::Wait);
        assert_eq!(done(&mut set, Ordered), []);
        assert_eq!(done(&mut set, HeadOfQueue), [6]);
    }

    #[test]
    fn who_gives_up_waiting_lets_others_go() {
        let mut set = TaskSet::default();
        assert_eq!(set.admit(1, Simple), Admission::Go);
        assert_eq!(set.admit(2, Ordered), Admission::Wait);
        assert_eq!(set.admit(3, Simple), Admission::Wait);
        let mut went = Vec::new();
        assert!(set.forget(2, |task| went.push(task)));
        assert_eq!(went, [3]);
        assert!(!set.forget(3, |_| ()));
        assert_eq!(set.waiting().count(), 0);
    }
}
