//! The thread that reports errors of iothreads to monitors and the log: failed and late requests, and broken queues. Errors of a disk
//! are reported at most once per second.
//!
//! A thread of its own, since no other thread may wait for the second to pass.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use block::SNAPSHOT_OVER;
use iothread::{DroppedReports, Errno, ErrorAction, LastIoError, Report, ReportSender};
use qmp::{ServerHandle, StateKey};
use serde_json::{Value, json};
use telemetry::counters::Scale;

use crate::errno_text::errno_text;

/// Minimum interval between two reported errors of a node and direction, as in QEMU.
const ERROR_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum interval between two log lines about dropped reports.
const DROPPED_INTERVAL: Duration = Duration::from_secs(60);

/// Starts the thread that receives the reports. It ends when the last sender is dropped.
pub(crate) fn spawn_reports_thread(events: ServerHandle) -> io::Result<ReportSender> {
    let (reports, mailbox) = iothread::report_channel();
    let dropped = reports.dropped_reports();
    std::thread::Builder::new()
        .name("reports".into())
        .spawn(move || run_reports_thread(&mailbox, &dropped, &events))?;
    Ok(reports)
}

/// Reports what arrives in the mailbox to monitors and the log, until all its senders are gone.
fn run_reports_thread(mailbox: &Receiver<Report>, dropped: &DroppedReports, events: &ServerHandle) {
    let mut error_throttle = PendingErrorThrottle::default();
    let mut dropped_throttle = DroppedReportsThrottle::default();
    loop {
        // Reports are dropped only when the mailbox is full, so there is one to receive, and the count is looked at after it.
        let due_times = [
            error_throttle.next_due_time(),
            dropped_throttle.next_due_time(dropped.count()),
        ];
        let report = match due_times.into_iter().flatten().min() {
            None => mailbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => mailbox.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match report {
            Ok(Report::Failed(failed)) => error_throttle.add_pending_error(failed),
            Ok(Report::Broken {
                export,
                queue,
                reason,
            }) => {
                let data = json!({"id": export.id(), "queue": queue, "reason": reason});
                let state = StateKey {
                    owner: export.id().to_owned(),
                    state: format!("queue {queue}"),
                };
                export.report_unless_removed(|| {
                    events.emit_state(state, "BLOCK_EXPORT_QUEUE_BROKEN", data);
                });
            }
            Ok(Report::Late {
                export,
                queue,
                requests,
                oldest_ticks,
            }) => {
                let seconds = Scale::measure().to_ns(oldest_ticks) / 1_000_000_000;
                tracing::warn!(
                    export = export.id(),
                    queue,
                    requests,
                    oldest_seconds = seconds,
                    advice = "look for errors of the disk below (dmesg, the log of its server); the requests stay in flight",
                    "requests take longer than request-timeout"
                );
                let data = json!({
                    "id": export.id(), "queue": queue, "requests": requests, "seconds": seconds
                });
                export.report_unless_removed(|| events.emit("BLOCK_EXPORT_REQUESTS_LATE", data));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        error_throttle.report_due_errors(now, |errors, error| {
            warn_of_failed_request_unless_efault(errors, error);
            events.emit("BLOCK_IO_ERROR", io_error_event_data(errors, error));
        });
        if let Some(newly_dropped) =
            dropped_throttle.take_unlogged_count_if_due(now, dropped.count())
        {
            tracing::warn!(
                reports = newly_dropped,
                advice = "query-blockstats counts all failed requests, and this log has all broken queues",
                "events were not sent to monitors: more errors occurred at once than could be reported"
            );
        }
    }
}

/// Logs an error, as rarely as the event is sent.
fn warn_of_failed_request_unless_efault(
    errors: &LastIoError,
    (errno, action): (Errno, ErrorAction),
) {
    if errno == Errno::FAULT {
        // The guest has removed its memory; no disk has failed.
        return;
    }
    if errno == SNAPSHOT_OVER {
        tracing::warn!(
            export = errors.export.id(),
            node = errors.node(),
            advice =
                "no disk has failed: remove the export and the snapshot, and begin another backup",
            "a read of a snapshot has failed, since its backup has ended"
        );
        return;
    }
    let advice = match (action, errno) {
        (ErrorAction::Report, Errno::NOSPC) => {
            "free space on the image's file system: the guest got an error, and may try again"
        }
        (ErrorAction::Report, _) => {
            "look for errors of the disk below (dmesg, the log of its server): the guest got an error"
        }
        (ErrorAction::Stop, Errno::NOSPC) => {
            "free space on the image's file system, then send block-export-resume: the request waits for it"
        }
        (ErrorAction::Stop, _) => {
            "repair the disk below, then send block-export-resume: the request waits for it"
        }
        (ErrorAction::Ignore, _) => {
            "reported to the guest as a success, as rerror or werror require: data may be lost"
        }
    };
    tracing::warn!(
        export = errors.export.id(),
        node = errors.node(),
        operation = if errors.reads { "read" } else { "write" },
        error = errno_text(&errno.into()),
        advice,
        "a request to the disk has failed"
    );
}

/// The data of a `BLOCK_IO_ERROR` event.
fn io_error_event_data(errors: &LastIoError, (errno, action): (Errno, ErrorAction)) -> Value {
    json!({
        "device": "",
        "node-name": errors.node(),
        "export": errors.export.id(),
        "operation": if errors.reads { "read" } else { "write" },
        "action": action.name(),
        "nospace": errno == Errno::NOSPC,
        "reason": match errno {
            SNAPSHOT_OVER => "the backup of the snapshot has ended".to_owned(),
            errno => errno_text(&errno.into()),
        },
    })
}

/// Limit of one report per second for each node and direction.
#[derive(Default)]
struct PendingErrorThrottle {
    /// Nodes and directions with an error that has not been reported.
    pending: Vec<Arc<LastIoError>>,
    /// When the next error of a node and direction may be reported.
    blocked_until: HashMap<(String, bool), Instant>,
}

impl PendingErrorThrottle {
    /// Adds a node and direction with a new error.
    fn add_pending_error(&mut self, errors: Arc<LastIoError>) {
        self.pending.push(errors);
    }

    /// When the next error may be reported; `None` if none is pending.
    fn next_due_time(&self) -> Option<Instant> {
        let due_times = self
            .pending
            .iter()
            .map(|errors| self.blocked_until.get(&node_and_direction(errors)));
        // (Errors that are not blocked have been reported already.)
        due_times.flatten().min().copied()
    }

    /// Reports all errors that are due; of several errors of an export, the last one.
    fn report_due_errors(
        &mut self,
        now: Instant,
        mut report: impl FnMut(&LastIoError, (Errno, ErrorAction)),
    ) {
        let PendingErrorThrottle {
            pending,
            blocked_until,
        } = self;
        blocked_until.retain(|_, until| *until > now);
        pending.retain(|errors| {
            if blocked_until.contains_key(&node_and_direction(errors)) {
                return true;
            }
            if let Some(error) = errors.take() {
                report(errors, error);
                blocked_until.insert(node_and_direction(errors), now + ERROR_INTERVAL);
            }
            false
        });
    }
}

/// Limit of one log line per minute for reports that were dropped because the mailbox was full.
#[derive(Default)]
struct DroppedReportsThrottle {
    /// How many dropped reports have been logged.
    logged_count: u64,
    /// When the next line may be logged.
    blocked_until: Option<Instant>,
}

impl DroppedReportsThrottle {
    /// When the next line is due, if `dropped` reports have been dropped so far.
    fn next_due_time(&self, dropped: u64) -> Option<Instant> {
        self.blocked_until.filter(|_| dropped > self.logged_count)
    }

    /// The number of dropped reports that are not logged yet, if a line is due now; counts them as logged.
    fn take_unlogged_count_if_due(&mut self, now: Instant, dropped: u64) -> Option<u64> {
        let blocked = self.blocked_until.is_some_and(|until| until > now);
        if dropped == self.logged_count || blocked {
            return None;
        }
        self.blocked_until = Some(now + DROPPED_INTERVAL);
        Some(dropped - std::mem::replace(&mut self.logged_count, dropped))
    }
}

/// Node and direction of an error, for which reports are limited.
fn node_and_direction(errors: &LastIoError) -> (String, bool) {
    (errors.node(), errors.reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iothread::{ExportReporter, ReportedExport};

    #[test]
    fn errors_are_reported_once_per_second_node_and_direction() {
        let (reports, mailbox) = iothread::report_channel();
        let exports = [("e", "n"), ("f", "n"), ("g", "m")].map(|(export, node)| {
            ExportReporter::new(reports.clone(), &ReportedExport::new(export), node)
        });
        let mut throttle = PendingErrorThrottle::default();
        let mut reported = |now: Instant| {
            for report in mailbox.try_iter() {
                if let Report::Failed(errors) = report {
                    throttle.add_pending_error(errors);
                }
            }
            let mut reported = Vec::new();
            throttle.report_due_errors(now, |errors, (errno, _)| {
                reported.push((errors.export.id().to_owned(), errors.reads, errno));
            });
            (reported, throttle.next_due_time())
        };
        let start = Instant::now();
        let entry = |export: &str, reads, errno| (export.to_owned(), reads, errno);
        exports[0].report_failure(true, Errno::IO);
        exports[2].report_failure(true, Errno::IO);
        exports[0].report_failure(false, Errno::IO);
        let all = ["e", "g"].map(|export| entry(export, true, Errno::IO));
        let (first, next) = reported(start);
        assert_eq!(first[..2], all);
        assert_eq!(first[2], entry("e", false, Errno::IO));
        assert_eq!(next, None);
        // Within the second, of the same node.
        for errno in [Errno::IO, Errno::NOSPC] {
            exports[0].report_failure(true, errno);
        }
        exports[1].report_failure(true, Errno::IO);
        let later = start + ERROR_INTERVAL;
        assert_eq!(reported(start + ERROR_INTERVAL / 2), (vec![], Some(later)));
        let after = vec![entry("e", true, Errno::NOSPC)];
        assert_eq!(reported(later), (after, Some(later + ERROR_INTERVAL)));
        let last = vec![entry("f", true, Errno::IO)];
        assert_eq!(reported(later + ERROR_INTERVAL), (last, None));
    }

    #[test]
    fn dropped_reports_are_logged_at_once_and_then_once_per_minute() {
        let mut throttle = DroppedReportsThrottle::default();
        let start = Instant::now();
        let later = start + DROPPED_INTERVAL;
        for (now, dropped, logged, next) in [
            (start, 0, None, None),
            (start, 3, Some(3), None),
            (start + DROPPED_INTERVAL / 2, 10, None, Some(later)),
            (later, 12, Some(9), None),
            (later + 2 * DROPPED_INTERVAL, 12, None, None),
        ] {
            assert_eq!(throttle.take_unlogged_count_if_due(now, dropped), logged);
            assert_eq!(throttle.next_due_time(dropped), next);
        }
    }
}
