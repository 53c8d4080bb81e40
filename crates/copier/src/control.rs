//! The control of a copier by other threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::guests::GuestQueues;

/// Settings that other threads change while the copier runs. It looks when it gets a turn.
#[derive(Default)]
pub struct CopierControl {
    /// It begins nothing: a client or an error has paused it.
    paused: AtomicBool,
    /// How often it was paused.
    pauses: AtomicU64,
    /// The last of these in which nothing was in flight any more.
    settled_pause: AtomicU64,
    /// A mirror is to end: nothing becomes pending any more unless a disk fails, so everything is copied and flushed.
    pub finishing: AtomicBool,
    /// A mirror is in sync, and its job decides whether it ends. Nothing is copied or flushed meanwhile: the decision is about the
    /// flush that was reported.
    pub awaits_end: AtomicBool,
    /// The copier has been stopped: nothing of it is in flight.
    pub stopped: AtomicBool,
    /// Bytes per second; 0: no limit.
    pub speed: AtomicU64,
    /// The guests to whose requests it gives way.
    pub guests: GuestQueues,
}

impl CopierControl {
    /// Has the copier begin nothing from its next turn on. False: it is paused already.
    pub fn pause(&self) -> bool {
        let is_new = !self.paused.swap(true, Ordering::AcqRel);
        if is_new {
            self.pauses.fetch_add(1, Ordering::AcqRel);
        }
        is_new
    }

    /// Ends a pause. False: it is not paused.
    pub fn resume(&self) -> bool {
        self.paused.swap(false, Ordering::AcqRel)
    }

    /// Whether it is paused. What was in flight then may still be.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Whether it is paused, and nothing is in flight.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_paused()
            && self.settled_pause.load(Ordering::Acquire) == self.pauses.load(Ordering::Acquire)
    }

    /// Notes, if it is paused, that nothing is in flight.
    pub(crate) fn settle_if_paused(&self) {
        let pause = self.pauses.load(Ordering::Acquire);
        if self.is_paused() {
            self.settled_pause.store(pause, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copier_is_settled_in_the_pause_in_which_nothing_is_in_flight() {
        let control = CopierControl::default();
        control.settle_if_paused();
        assert!(control.pause());
        assert!(!control.is_settled(), "it may have begun something before");
        control.settle_if_paused();
        assert!(control.is_settled());
        assert!(control.resume() && !control.is_settled());
        assert!(
            control.pause() && !control.is_settled(),
            "that was another pause"
        );
        control.settle_if_paused();
        assert!(!control.pause() && control.is_settled(), "it goes on");
    }
}
