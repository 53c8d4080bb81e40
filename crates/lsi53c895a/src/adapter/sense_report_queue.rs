//! Sense data of one logical unit, kept from CHECK CONDITION until REQUEST SENSE; further failed tasks queue behind it.
//!
//! The SCSI bus carries no sense data with the status: the initiator fetches them with its next command. With many
//! tasks in flight two may fail at about the same time, and the second's data must not replace the first's. So a failed
//! task's status waits until the status of the previous one was sent, and the initiator has sent REQUEST SENSE or
//! another command without a tag: SAM-2's contingent allegiance, for failed tasks only. Commands with a tag do not end
//! it, since a driver's programs may send commands that were queued before the driver handles the failure. An initiator
//! that does not send REQUEST SENSE delays other failed tasks only until a timeout.

use std::collections::VecDeque;

use scsi::Sense;

/// Timeout for REQUEST SENSE while other failed tasks wait. Initiators that send it do so at once, and none aborts a
/// command after so short a time.
const TIMEOUT_NS: u64 = 1_000_000_000;

/// Sense data for the next REQUEST SENSE.
#[derive(Default)]
enum SenseReportState {
    #[default]
    Empty,
    /// The task in this slot is sending its status.
    Reporting(u16, Sense),
    /// The initiator has the status, since this time.
    Reported(u64, Sense),
}

/// The sense data of one unit, and failed tasks that wait to report theirs.
#[derive(Default)]
pub struct SenseReportQueue {
    state: SenseReportState,
    waiting: VecDeque<(u16, Sense)>,
}

impl SenseReportQueue {
    /// Adds the sense data of a failed task. True: it may report its status; otherwise
    /// [`SenseReportQueue::take_next_to_report`] returns it later.
    pub fn start_report_or_queue(&mut self, slot: u16, sense: Sense) -> bool {
        let may_report = matches!(self.state, SenseReportState::Empty);
        if may_report {
            self.state = SenseReportState::Reporting(slot, sense);
        } else {
            self.waiting.push_back((slot, sense));
        }
        may_report
    }

    /// A task has ended: keeps its sense data, or lets another task report. `reported`: the initiator has its status;
    /// otherwise it was aborted.
    pub fn on_task_released(&mut self, slot: u16, reported: bool, now_ns: u64) {
        if let SenseReportState::Reporting(reporting, sense) = self.state
            && reporting == slot
        {
            self.state = if reported {
                SenseReportState::Reported(now_ns, sense)
            } else {
                SenseReportState::Empty
            };
        }
        self.waiting.retain(|(waiting, _)| *waiting != slot);
    }

    /// Removes the sense data, since the initiator's next command has come. REQUEST SENSE returns them.
    pub fn take_reported_sense(&mut self) -> Option<Sense> {
        match self.state {
            SenseReportState::Reported(_, sense) => {
                self.state = SenseReportState::Empty;
                Some(sense)
            }
            _ => None,
        }
    }

    /// When the timeout expires: call [`SenseReportQueue::take_next_to_report`] then.
    pub fn request_sense_deadline_ns(&self) -> Option<u64> {
        match self.state {
            SenseReportState::Reported(since_ns, _) if !self.waiting.is_empty() => {
                Some(since_ns.saturating_add(TIMEOUT_NS))
            }
            _ => None,
        }
    }

    /// The failed task that may report its status now, if there is one: it is the one that reports from here on.
    pub fn take_next_to_report(&mut self, now_ns: u64) -> Option<u16> {
        if self
            .request_sense_deadline_ns()
            .is_some_and(|deadline| deadline <= now_ns)
        {
            self.state = SenseReportState::Empty;
        }
        if !matches!(self.state, SenseReportState::Empty) {
            return None;
        }
        let (slot, sense) = self.waiting.pop_front()?;
        self.state = SenseReportState::Reporting(slot, sense);
        Some(slot)
    }

    /// Clears everything. No task waits any more.
    pub fn reset(&mut self) {
        *self = SenseReportQueue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scsi::SenseKey;

    fn sense(code: u16) -> Sense {
        Sense::new(SenseKey::MediumError, code)
    }

    #[test]
    fn aborted_tasks_report_nothing_and_delay_no_others() {
        let mut pending = SenseReportQueue::default();
        assert!(pending.start_report_or_queue(1, sense(1)));
        for slot in 2..5 {
            assert!(!pending.start_report_or_queue(slot, sense(slot)));
        }
        pending.on_task_released(2, false, 0);
        assert_eq!(pending.take_next_to_report(0), None);
        pending.on_task_released(1, false, 0);
        assert_eq!(pending.take_reported_sense(), None);
        assert_eq!(pending.take_next_to_report(0), Some(3));
        pending.reset();
        assert_eq!(
            (
                pending.take_reported_sense(),
                pending.take_next_to_report(0)
            ),
            (None, None)
        );
    }

    #[test]
    fn an_initiator_without_request_sense_delays_others_until_a_timeout() {
        let mut pending = SenseReportQueue::default();
        pending.start_report_or_queue(1, sense(1));
        pending.on_task_released(1, true, 5);
        assert_eq!(pending.request_sense_deadline_ns(), None, "no task waits");
        pending.start_report_or_queue(2, sense(2));
        assert_eq!(pending.request_sense_deadline_ns(), Some(5 + TIMEOUT_NS));
        assert_eq!(pending.take_next_to_report(4 + TIMEOUT_NS), None);
        assert_eq!(pending.take_next_to_report(5 + TIMEOUT_NS), Some(2));
        pending.on_task_released(2, true, 7);
        assert_eq!(pending.take_reported_sense(), Some(sense(2)));
    }
}
