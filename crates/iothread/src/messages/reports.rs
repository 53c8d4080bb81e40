//! Error reporting from iothreads to monitors.
//!
//! The iothread never waits for monitors and never allocates for a failed request. A dead disk fails requests by the thousand,
//! so they are not reported one by one: each export has a cell for reads and one for other requests. The iothread stores the
//! last error there, and sends a report to a mailbox only if the cell was empty. The reader takes the error out when it reports it.
//! The mailbox has a limit; reports that find it full are only counted.

use std::fmt::Display;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Errno;
use eventfd::Signaller;

use super::export_queues::ExportQueues;
use crate::on_error::{ErrorAction, ErrorPolicy};

/// Limit of reports in the mailbox.
const MAX_WAITING: usize = 256;

/// An export as reports name it: also when another one has its id, it is not that one.
#[derive(Debug)]
pub struct ReportedExport {
    id: String,
    is_removed: Mutex<bool>,
}

impl ReportedExport {
    /// One more export, of this id.
    #[must_use]
    pub fn new(id: &str) -> Arc<Self> {
        Arc::new(ReportedExport {
            id: id.to_owned(),
            is_removed: Mutex::new(false),
        })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Passes a report on, unless the export is removed, which waits for that.
    pub fn report_unless_removed(&self, report: impl FnOnce()) {
        let is_removed = self.lock();
        if !*is_removed {
            report();
        }
    }

    /// From now on reports about it, some of which may be in the mailbox, are not passed on.
    pub fn mark_removed(&self) {
        *self.lock() = true;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_removed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Report of an error or of late requests.
#[derive(Debug)]
pub enum Report {
    /// Requests have failed; [`LastIoError::take`] has the error.
    Failed(Arc<LastIoError>),
    /// A guest broke a queue.
    Broken {
        /// The export.
        export: Arc<ReportedExport>,
        /// The queue's index.
        queue: u16,
        /// The error.
        reason: String,
    },
    /// Requests take too long.
    Late {
        /// The export.
        export: Arc<ReportedExport>,
        /// The queue's index.
        queue: u16,
        /// Number of requests that were not reported before.
        requests: u32,
        /// Age of the oldest of these, in ticks.
        oldest_ticks: u64,
    },
}

/// Sender of reports, for any number of iothreads.
#[derive(Clone, Debug)]
pub struct ReportSender {
    sender: SyncSender<Report>,
    dropped: DroppedReports,
}

/// Count of reports that found their mailbox full. It outlives the mailbox.
#[derive(Clone, Debug, Default)]
pub struct DroppedReports(Arc<AtomicU64>);

impl DroppedReports {
    /// Number of dropped reports since the mailbox was created.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Creates a channel for reports: its senders, and the mailbox with room for 256.
#[must_use]
pub fn report_channel() -> (ReportSender, Receiver<Report>) {
    let (sender, receiver) = sync_channel(MAX_WAITING);
    let dropped = DroppedReports::default();
    (ReportSender { sender, dropped }, receiver)
}

impl ReportSender {
    /// Counter of reports that found the mailbox full.
    #[must_use]
    pub fn dropped_reports(&self) -> DroppedReports {
        self.dropped.clone()
    }

    /// False when there is no room, or the receiver is gone.
    fn send_or_count_dropped(&self, report: Report) -> bool {
        let sent = self.sender.try_send(report).is_ok();
        if !sent {
            self.dropped.0.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }
}

/// The last error of an export's reads, or of its other requests, until it is taken.
#[derive(Debug)]
pub struct LastIoError {
    /// The export.
    pub export: Arc<ReportedExport>,
    /// Its node, which may be replaced.
    node: Mutex<String>,
    /// Whether reads failed, or other requests.
    pub reads: bool,
    /// The error, with the action in the bits above; 0: none.
    errno: AtomicI32,
}

/// Position of the action, above all error numbers.
const ACTION_BIT: u32 = 16;

impl LastIoError {
    /// The node of the export now.
    #[must_use]
    pub fn node(&self) -> String {
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.clone()
    }

    fn set_node(&self, name: &str) {
        let mut node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        name.clone_into(&mut node);
    }

    /// Takes the last error since the previous call, and the action on it.
    pub fn take(&self) -> Option<(Errno, ErrorAction)> {
        let left = self.errno.swap(0, Ordering::Relaxed);
        let action = match left >> ACTION_BIT {
            0 => ErrorAction::Report,
            1 => ErrorAction::Ignore,
            _ => ErrorAction::Stop,
        };
        let errno = left & ((1 << ACTION_BIT) - 1);
        (left != 0).then(|| (Errno::from_raw_os_error(errno), action))
    }

    /// Stores an error. True if there was none.
    fn store_error(&self, errno: Errno, action: ErrorAction) -> bool {
        let action = match action {
            ErrorAction::Report => 0,
            ErrorAction::Ignore => 1,
            ErrorAction::Stop => 2,
        };
        let left = errno.raw_os_error() | action << ACTION_BIT;
        self.errno.swap(left, Ordering::Relaxed) == 0
    }
}

/// Reporter of the queues of one export.
pub struct ExportReporter {
    reads: Arc<LastIoError>,
    writes: Arc<LastIoError>,
    reports: ReportSender,
    policy: ErrorPolicy,
    queues: ExportQueues,
    signaller: Signaller,
}

impl ExportReporter {
    /// Names another node in reports from now on: its guest uses that one.
    pub fn set_node(&self, name: &str) {
        self.reads.set_node(name);
        self.writes.set_node(name);
    }

    /// Reporter of an export with a node.
    #[must_use]
    pub fn new(reports: ReportSender, export: &Arc<ReportedExport>, node: &str) -> Self {
        let cell = |reads| {
            Arc::new(LastIoError {
                export: export.clone(),
                node: Mutex::new(node.to_owned()),
                reads,
                errno: AtomicI32::new(0),
            })
        };
        ExportReporter {
            reads: cell(true),
            writes: cell(false),
            reports,
            policy: ErrorPolicy::default(),
            queues: ExportQueues::default(),
            signaller: Signaller::new(export.id()),
        }
    }

    /// The same, with this error policy.
    #[must_use]
    pub fn with_policy(self, policy: ErrorPolicy) -> Self {
        ExportReporter { policy, ..self }
    }

    /// Its running queues, with the counts of their parked and late requests.
    #[must_use]
    pub fn queues(&self) -> &ExportQueues {
        &self.queues
    }

    /// For signals to its front-end, also of queues that are started later.
    #[must_use]
    pub(crate) fn signaller(&self) -> &Signaller {
        &self.signaller
    }

    /// The export's name.
    #[must_use]
    pub fn export(&self) -> &str {
        self.reads.export.id()
    }

    /// Reports a failed request. Returns the action of its policy.
    pub fn report_failure(&self, read: bool, errno: Errno) -> ErrorAction {
        let policy = if read {
            self.policy.reads
        } else {
            self.policy.writes
        };
        let action = policy.action(errno);
        self.store_error_and_report_if_first(read, errno, action);
        action
    }

    /// Reports a failed request whose error the guest gets.
    pub fn report_error_sent_to_guest(&self, read: bool, errno: Errno) {
        self.store_error_and_report_if_first(read, errno, ErrorAction::Report);
    }

    /// Stores an error in its cell, and sends a report if the cell was empty.
    fn store_error_and_report_if_first(&self, read: bool, errno: Errno, action: ErrorAction) {
        let cell = if read { &self.reads } else { &self.writes };
        if cell.store_error(errno, action)
            && !self
                .reports
                .send_or_count_dropped(Report::Failed(cell.clone()))
        {
            // The next failed request tries again.
            cell.take();
        }
    }

    /// Counts and reports requests that take too long.
    pub(crate) fn count_and_report_late(&self, queue: u16, requests: u32, oldest_ticks: u64) {
        self.queues.add_to_late_total(requests);
        self.reports.send_or_count_dropped(Report::Late {
            export: self.reads.export.clone(),
            queue,
            requests,
            oldest_ticks,
        });
    }

    /// Reports a queue that the guest broke.
    pub fn report_broken_queue(&self, queue: u16, reason: &dyn Display) {
        self.reports.send_or_count_dropped(Report::Broken {
            export: self.reads.export.clone(),
            queue,
            reason: reason.to_string(),
        });
    }
}

/// Reporter of one queue.
#[derive(Clone)]
pub struct QueueReporter {
    /// The reports of its export.
    pub export: Arc<ExportReporter>,
    /// Its index.
    pub queue: u16,
}

impl QueueReporter {
    /// Reports that the guest broke this queue.
    pub(crate) fn report_broken(&self, reason: &dyn Display) {
        self.export.report_broken_queue(self.queue, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_one_direction_are_one_report_with_the_last_error() {
        let (reports, mailbox) = report_channel();
        let export = ExportReporter::new(reports.clone(), &ReportedExport::new("e"), "n");
        for errno in [Errno::IO, Errno::IO, Errno::NOSPC] {
            export.report_failure(false, errno);
        }
        export.report_failure(true, Errno::IO);
        for (reads, errno) in [(false, Errno::NOSPC), (true, Errno::IO)] {
            let Ok(Report::Failed(cell)) = mailbox.try_recv() else {
                panic!("one report for each direction");
            };
            let last = Some((errno, ErrorAction::Report));
            assert_eq!((cell.reads, cell.take()), (reads, last));
            assert_eq!(cell.take(), None);
        }
        assert!(mailbox.try_recv().is_err());
        // Once it was taken, the next is reported again.
        export.report_failure(true, Errno::IO);
        assert!(mailbox.try_recv().is_ok());
        assert_eq!(reports.dropped_reports().count(), 0);
    }

    #[test]
    fn reports_of_a_removed_export_are_not_passed_on_to_another_one_of_its_id() {
        let [old, new] = ["e", "e"].map(ReportedExport::new);
        old.mark_removed();
        let mut passed_on = Vec::new();
        for (name, export) in [("old", &old), ("new", &new)] {
            export.report_unless_removed(|| passed_on.push(name));
        }
        assert_eq!(passed_on, ["new"]);
    }

    #[test]
    fn a_report_without_room_is_counted_and_sent_with_the_next_error() {
        let (reports, mailbox) = report_channel();
        let export = ExportReporter::new(reports.clone(), &ReportedExport::new("e"), "n");
        for queue in 0..300 {
            export.report_broken_queue(queue, &"why");
        }
        assert_eq!(reports.dropped_reports().count(), 300 - MAX_WAITING as u64);
        export.report_failure(true, Errno::IO);
        assert_eq!(mailbox.try_iter().count(), MAX_WAITING);
        export.report_failure(true, Errno::IO);
        assert!(matches!(mailbox.try_recv(), Ok(Report::Failed(_))));
    }
}
