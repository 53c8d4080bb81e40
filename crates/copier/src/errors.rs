//! Errors of a copier's disks, and its end.

use block::{CopyFailure, CopySide};
use iothread::ErrorAction;

use crate::{Copier, CopierReport, State};

impl Copier {
    /// Ends, if it has failed and nothing is in flight.
    pub(super) fn end_if_failed_and_idle(&mut self) {
        if let State::Failing(failure) = self.state
            && self.count_in_flight() == 0
        {
            self.end(Err(failure));
        }
    }

    pub(super) fn end(&mut self, result: Result<(), CopyFailure>) {
        self.state = State::Ended;
        (self.report)(CopierReport::Ended(result));
    }

    /// Acts on an error as the policy of its disk says. The request began after so many stops.
    pub(super) fn on_error(&mut self, failure: CopyFailure, stops: u64) {
        let policy = match failure.side {
            CopySide::Source => self.settings.on_source_error,
            CopySide::Target => self.settings.on_target_error,
        };
        let action = match failure.side {
            // Nothing that is copied from now on makes the target complete.
            CopySide::Target if self.copy.may_have_lost_writes() => ErrorAction::Report,
            _ => policy.action(failure.errno),
        };
        self.act_on_error(failure, action, stops);
    }

    pub(super) fn act_on_error(&mut self, failure: CopyFailure, action: ErrorAction, stops: u64) {
        match action {
            _ if self.copy.is_over() => {
                self.state = State::Ended;
                return;
            }
            _ if self.state != State::Copying => return,
            ErrorAction::Report => self.state = State::Failing(failure),
            ErrorAction::Ignore if self.waits_to_retry => return,
            ErrorAction::Ignore => self.waits_to_retry = true,
            // Others were in flight, and fail as well; perhaps after a client has resumed the job.
            ErrorAction::Stop if self.stops != stops => return,
            ErrorAction::Stop => {
                self.stops += 1;
                self.control.pause();
            }
        }
        (self.report)(CopierReport::Failed(failure, action));
    }
}
