//! The end of a pass over the disk: of a backup the end of the copier, of a mirror the beginning of the next pass.

use std::sync::atomic::Ordering;

use crate::{Copier, CopierReport, CopierWork};

/// Time between two passes of a mirror that is ready.
const PASS_NS: u64 = 100_000_000;
/// A mirror with less to copy is ready.
const READY_BYTES: u64 = 8 << 20;

impl Copier {
    /// Whether a mirror is not to end, and waits until there is more to copy.
    pub(super) fn rests_after_pass(&mut self) -> bool {
        let rests = self.is_ready && !self.control.finishing.load(Ordering::Acquire);
        if rests {
            self.plan.begin_again();
            self.retry_at_ns = self.now_ns + PASS_NS;
        }
        rests
    }

    /// Whether a mirror that is not ready has so little left that it is.
    pub(super) fn is_almost_done(&self) -> bool {
        self.settings.work == CopierWork::Mirror
            && !self.is_ready
            && self.copy.pending_bytes() <= READY_BYTES
    }

    pub(super) fn on_flushed(&mut self) {
        if self.settings.work != CopierWork::Mirror {
            return self.end(Ok(()));
        }
        if !self.is_ready {
            self.is_ready = true;
            self.pace.ignore_guests();
            (self.report)(CopierReport::Ready);
        } else if self.copy.pending_bytes() == 0 {
            self.retry_at_ns = self.now_ns + PASS_NS;
            self.control.awaits_end.store(true, Ordering::Release);
            (self.report)(CopierReport::InSync);
        }
    }
}
