//! Sense data between CHECK CONDITION and REQUEST SENSE, of one logical unit.
//!
//! The SCSI bus carries no sense data with the status: the initiator asks for it by its next command. With many tasks in
//! flight two may fail at about the same time, and the second's data must not take the place of the first's. So a failed
//! task's status waits until the one before it was taken, and the initiator has asked, or has sent another command without a
//! tag: what SAM-2 calls contingent allegiance, for failed tasks only. Commands with a tag do not end it, since a driver's
//! programs may send what was queued before the driver hears of the failure. Nobody waits for an initiator that does
//! not ask for long.

use std::collections::VecDeque;

use scsi::Sense;

/// How long an initiator may take to ask, when others wait for that. One that asks does so at once; none gives a command up that
/// fast.
const PATIENCE_NS: u64 = 1_000_000_000;

/// What the next REQUEST SENSE is to hear.
#[derive(Default)]
enum State {
    #[default]
    Empty,
    /// The task in this slot is to tell its status.
    Reporting(u16, Sense),
    /// The initiator knows of it, since then.
    Reported(u64, Sense),
}

/// One unit's.
#[derive(Default)]
pub struct PendingSense {
    state: State,
    waiting: VecDeque<(u16, Sense)>,
}

impl PendingSense {
    /// A task has failed. True: it may tell its status; else [`PendingSense::next`] names it.
    pub fn failed(&mut self, slot: u16, sense: Sense) -> bool {
        let free = matches!(self.state, State::Empty);
        if free {
            self.state = State::Reporting(slot, sense);
        } else {
            self.waiting.push_back((slot, sense));
        }
        free
    }

    /// A failed task is over: the initiator has its status, or nobody wants it any more.
    pub fn ended(&mut self, slot: u16, reported: bool, now_ns: u64) {
        if let State::Reporting(reporting, sense) = self.state
            && reporting == slot
        {
            self.state = if reported {
                State::Reported(now_ns, sense)
            } else {
                State::Empty
            };
        }
        self.waiting.retain(|(waiting, _)| *waiting != slot);
    }

    /// The initiator's next command has come. What it hears if it is REQUEST SENSE.
    pub fn take(&mut self) -> Option<Sense> {
        match self.state {
            State::Reported(_, sense) => {
                self.state = State::Empty;
                Some(sense)
            }
            _ => None,
        }
    }

    /// When [`PendingSense::next`] will name somebody even if nothing happens.
    pub fn deadline_ns(&self) -> Option<u64> {
        match self.state {
            State::Reported(since_ns, _) if !self.waiting.is_empty() => {
                Some(since_ns.saturating_add(PATIENCE_NS))
            }
            _ => None,
        }
    }

    /// The failed task that may tell its status now.
    pub fn next(&mut self, now_ns: u64) -> Option<u16> {
        if self
            .deadline_ns()
            .is_some_and(|deadline| deadline <= now_ns)
        {
            self.state = State::Empty;
        }
        if !matches!(self.state, State::Empty) {
            return None;
        }
        let (slot, sense) = self.waiting.pop_front()?;
        self.state = State::Reporting(slot, sense);
        Some(slot)
    }

    /// All is forgotten. Nobody waits any more.
    pub fn reset(&mut self) {
        *self = PendingSense::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scsi::Key;

    fn sense(code: u16) -> Sense {
        Sense::new(Key::MediumError, code)
    }

    #[test]
    fn a_second_failure_waits_until_the_first_was_asked_for() {
        let mut kept = PendingSense::default();
        assert!(kept.failed(1, sense(1)));
        assert!(!kept.failed(2, sense(2)));
        assert_eq!((kept.take(), kept.next(0)), (None, None), "not told yet");
        kept.ended(1, true, 0);
        assert_eq!(kept.next(0), None);
        assert_eq!(kept.take(), Some(sense(1)));
        assert_eq!(kept.next(0), Some(2));
        kept.ended(2, true, 0);
        assert_eq!(kept.take(), Some(sense(2)));
        assert_eq!((kept.take(), kept.next(0)), (None, None));
    }

    #[test]
    fn who_is_aborted_is_not_told_and_holds_up_nobody() {
        let mut kept = PendingSense::default();
        assert!(kept.failed(1, sense(1)));
        for slot in 2..5 {
            assert!(!kept.failed(slot, sense(slot)));
        }
        kept.ended(2, false, 0);
        assert_eq!(kept.next(0), None);
        kept.ended(1, false, 0);
        assert_eq!(kept.take(), None);
        assert_eq!(kept.next(0), Some(3));
        kept.reset();
        assert_eq!((kept.take(), kept.next(0)), (None, None));
    }

    #[test]
    fn nobody_waits_for_long_for_an_initiator_that_does_not_ask() {
        let mut kept = PendingSense::default();
        kept.failed(1, sense(1));
        kept.ended(1, true, 5);
        assert_eq!(kept.deadline_ns(), None, "nobody waits");
        kept.failed(2, sense(2));
        assert_eq!(kept.deadline_ns(), Some(5 + PATIENCE_NS));
        assert_eq!(kept.next(4 + PATIENCE_NS), None);
        assert_eq!(kept.next(5 + PATIENCE_NS), Some(2));
        kept.ended(2, true, 7);
        assert_eq!(kept.take(), Some(sense(2)));
    }
}
