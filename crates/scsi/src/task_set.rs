//! The task set (SAM-5, section 8): decides by their attributes when the tasks of a unit may start.
//!
//! It belongs to one thread: a transport defines the order across its queues. As long as all tasks are simple, it is a
//! counter.

use std::collections::VecDeque;

/// The task attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAttribute {
    /// Starts after earlier ordered tasks, and not while a head-of-queue task runs.
    Simple,
    /// Starts after all earlier tasks and before all later ones, except head-of-queue tasks.
    Ordered,
    /// Starts at once.
    HeadOfQueue,
}

/// Whether a task may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOrWait {
    /// It may start.
    Go,
    /// It may start when [`TaskSet::finish_task_and_start_others`] returns it.
    Wait,
}

/// Tasks that run, and tasks that wait. `T` is the adapter's name for a task.
#[derive(Debug)]
pub struct TaskSet<T> {
    in_flight: u32,
    /// Running tasks that simple ones wait for: ordered and head-of-queue ones.
    blocking: u32,
    waiting: VecDeque<(T, TaskAttribute)>,
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
    /// Adds a task, and says whether it may start now.
    #[inline]
    pub fn start_or_enqueue_task(&mut self, task: T, attribute: TaskAttribute) -> StartOrWait {
        let may_start = match attribute {
            TaskAttribute::HeadOfQueue => true,
            _ => self.waiting.is_empty() && self.may_start_beside_running(attribute),
        };
        if may_start {
            self.add_started_task(attribute);
            StartOrWait::Go
        } else {
            self.waiting.push_back((task, attribute));
            StartOrWait::Wait
        }
    }

    /// Whether simple tasks may start at once, until a task of another attribute is added.
    #[must_use]
    pub fn simple_tasks_may_start(&self) -> bool {
        self.waiting.is_empty() && self.blocking == 0
    }

    /// Counts simple tasks that have started while the set [was open](Self::simple_tasks_may_start).
    pub fn add_started_simple_tasks(&mut self, tasks: u32) {
        self.in_flight += tasks;
    }

    /// Whether no task waits.
    #[must_use]
    pub fn none_waiting(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Counts simple tasks that have finished while none waited.
    pub fn subtract_finished_simple_tasks(&mut self, tasks: u32) {
        debug_assert!(
            self.waiting.is_empty(),
            "a waiting task would not be started"
        );
        self.in_flight = self.in_flight.saturating_sub(tasks);
    }

    /// Whether a task of this attribute may start now, if none waits before it.
    fn may_start_beside_running(&self, attribute: TaskAttribute) -> bool {
        match attribute {
            TaskAttribute::Ordered => self.in_flight == 0,
            TaskAttribute::Simple | TaskAttribute::HeadOfQueue => self.blocking == 0,
        }
    }

    /// Counts a task that starts.
    fn add_started_task(&mut self, attribute: TaskAttribute) {
        self.in_flight += 1;
        self.blocking += u32::from(attribute != TaskAttribute::Simple);
    }

    /// Removes a task that has finished. Calls `start` with each that may start now.
    #[inline]
    pub fn finish_task_and_start_others(&mut self, attribute: TaskAttribute, start: impl FnMut(T)) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if attribute != TaskAttribute::Simple {
            self.blocking = self.blocking.saturating_sub(1);
        }
        if !self.waiting.is_empty() {
            self.start_waiting_tasks(start);
        }
    }

    /// Starts tasks from the front of those that wait, as far as they may start.
    #[cold]
    fn start_waiting_tasks(&mut self, mut start: impl FnMut(T)) {
        while let Some(&(task, attribute)) = self.waiting.front() {
            if !self.may_start_beside_running(attribute) {
                return;
            }
            self.waiting.pop_front();
            self.add_started_task(attribute);
            start(task);
        }
    }

    /// Removes a task that waits. Calls `start` with each that may start now. False: it did not wait.
    pub fn remove_waiting_and_start_others(&mut self, task: T, start: impl FnMut(T)) -> bool {
        let Some(at) = self.waiting.iter().position(|(one, _)| *one == task) else {
            return false;
        };
        self.waiting.remove(at);
        self.start_waiting_tasks(start);
        true
    }

    /// Tasks that wait.
    pub fn waiting_tasks(&self) -> impl Iterator<Item = T> {
        self.waiting.iter().map(|(task, _)| *task)
    }
}

#[cfg(test)]
mod tests {
    use super::TaskAttribute::{HeadOfQueue, Ordered, Simple};
    use super::*;

    fn done(set: &mut TaskSet<u32>, attribute: TaskAttribute) -> Vec<u32> {
        let mut went = Vec::new();
        set.finish_task_and_start_others(attribute, |task| went.push(task));
        went
    }

    #[test]
    fn simple_tasks_overtake_only_each_other() {
        let mut set = TaskSet::default();
        assert_eq!(set.start_or_enqueue_task(1, Simple), StartOrWait::Go);
        assert_eq!(set.start_or_enqueue_task(2, Simple), StartOrWait::Go);
        assert_eq!(set.start_or_enqueue_task(3, Ordered), StartOrWait::Wait);
        assert_eq!(set.start_or_enqueue_task(4, Simple), StartOrWait::Wait);
        assert_eq!(set.start_or_enqueue_task(5, Simple), StartOrWait::Wait);
        assert_eq!(set.start_or_enqueue_task(6, Ordered), StartOrWait::Wait);
        assert_eq!(set.start_or_enqueue_task(7, HeadOfQueue), StartOrWait::Go);
        assert_eq!(done(&mut set, Simple), []);
        assert_eq!(done(&mut set, Simple), []);
        assert_eq!(done(&mut set, HeadOfQueue), [3]);
        assert_eq!(done(&mut set, Ordered), [4, 5]);
        assert_eq!(done(&mut set, Simple), []);
        assert_eq!(done(&mut set, Simple), [6]);
    }

    #[test]
    fn no_task_overtakes_one_at_the_head_of_the_queue() {
        let mut set = TaskSet::default();
        assert_eq!(set.start_or_enqueue_task(1, HeadOfQueue), StartOrWait::Go);
        assert_eq!(set.start_or_enqueue_task(2, Simple), StartOrWait::Wait);
        assert_eq!(set.start_or_enqueue_task(3, HeadOfQueue), StartOrWait::Go);
        assert_eq!(set.start_or_enqueue_task(4, Ordered), StartOrWait::Wait);
        assert_eq!(done(&mut set, HeadOfQueue), []);
        assert_eq!(done(&mut set, HeadOfQueue), [2]);
        assert_eq!(done(&mut set, Simple), [4]);
        // A head-of-queue task starts while an ordered one runs: later tasks wait for both.
        assert_eq!(set.start_or_enqueue_task(5, HeadOfQueue), StartOrWait::Go);
        assert_eq!(set.start_or_enqueue_task(6, Simple), StartOrWait::Wait);
        assert_eq!(done(&mut set, Ordered), []);
        assert_eq!(done(&mut set, HeadOfQueue), [6]);
    }

    #[test]
    fn removing_a_waiting_task_lets_later_ones_start() {
        let mut set = TaskSet::default();
        assert_eq!(set.start_or_enqueue_task(1, Simple), StartOrWait::Go);
        assert_eq!(set.start_or_enqueue_task(2, Ordered), StartOrWait::Wait);
        assert_eq!(set.start_or_enqueue_task(3, Simple), StartOrWait::Wait);
        let mut went = Vec::new();
        assert!(set.remove_waiting_and_start_others(2, |task| went.push(task)));
        assert_eq!(went, [3]);
        assert!(!set.remove_waiting_and_start_others(3, |_| ()));
        assert_eq!(set.waiting_tasks().count(), 0);
    }
}
