//! Error reporting from iothreads to monitors and the log. Errors of a disk are reported at most once per second.
//!
//! A thread of its own, since no other thread may wait for the second to pass.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use iothread::{DroppedReports, Errno, ErrorAction, IoErrors, Report, Reports};
use qmp::Handle;
use serde_json::{Value, json};
use telemetry::counters::Scale;

use crate::errno_text::errno_text;

/// Minimum interval between two reported errors of a node and direction, as in QEMU.
const PERIOD: Duration = Duration::from_secs(1);

/// Minimum interval between two log lines about dropped reports.
const DROPPED_PERIOD: Duration = Duration::from_secs(60);

/// Starts the thread. It ends when the last sender is dropped.
pub(crate) fn spawn(events: Handle) -> io::Result<Reports> {
    let (reports, mailbox) = iothread::mailbox();
    let dropped = reports.lost();
    std::thread::Builder::new()
        .name("reports".into())
        .spawn(move || run(&mailbox, &dropped, &events))?;
    Ok(reports)
}

fn run(mailbox: &Receiver<Report>, dropped: &DroppedReports, events: &Handle) {
    let mut errors = ErrorThrottle::default();
    let mut dropped_throttle = DroppedThrottle::default();
    loop {
        // Reports are dropped only when the mailbox is full, so there is one to receive, and the count is looked at after it.
        let next = [
            errors.next_due(),
            dropped_throttle.next_due(dropped.count()),
        ];
        let report = match next.into_iter().flatten().min() {
            None => mailbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => mailbox.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match report {
            Ok(Report::Failed(cell)) => errors.add(cell),
            Ok(Report::Broken {
                export,
                queue,
                reason,
            }) => {
                let data = json!({"id": export, "queue": queue, "reason": reason});
                events.emit("BLOCK_EXPORT_QUEUE_BROKEN", data);
            }
            Ok(Report::Late {
                export,
                queue,
                requests,
                oldest_ticks,
            }) => {
                let seconds = Scale::new().to_ns(oldest_ticks) / 1_000_000_000;
                tracing::warn!(
                    export,
                    queue,
                    requests,
                    oldest_seconds = seconds,
                    advice = "look for errors of the disk below, as with dmesg; the requests stay in flight",
                    "requests take longer than request-timeout"
                );
                let data =
                    json!({"id": export, "queue": queue, "requests": requests, "seconds": seconds});
                events.emit("BLOCK_EXPORT_REQUESTS_LATE", data);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        errors.report_due(now, |cell, error| {
            log_error(cell, error);
            events.emit("BLOCK_IO_ERROR", io_error(cell, error));
        });
        if let Some(more) = dropped_throttle.take_due(now, dropped.count()) {
            tracing::warn!(
                reports = more,
                advice = "query-blockstats counts all failed requests, and this log has all broken queues",
                "events were not sent to monitors: more errors occurred at once than could be reported"
            );
        }
    }
}

/// Logs an error, as rarely as the event is sent.
fn log_error(cell: &IoErrors, (errno, action): (Errno, ErrorAction)) {
    if errno == Errno::FAULT {
        // The guest has removed its memory; no disk has failed.
        return;
    }
    let advice = match (action, errno) {
        (ErrorAction::Report, Errno::NOSPC) => {
            "free space on the image's file system: the guest got an error, and may try again"
        }
        (ErrorAction::Report, _) => {
            "look for errors of the disk below, as with dmesg: the guest got an error"
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
        export = cell.export,
        node = cell.node,
        operation = if cell.reads { "read" } else { "write" },
        error = errno_text(&errno.into()),
        advice,
        "a request to the disk has failed"
    );
}

/// The data of a `BLOCK_IO_ERROR` event.
fn io_error(cell: &IoErrors, (errno, action): (Errno, ErrorAction)) -> Value {
    json!({
        "device": "",
        "node-name": cell.node,
        "export": cell.export,
        "operation": if cell.reads { "read" } else { "write" },
        "action": action.name(),
        "nospace": errno == Errno::NOSPC,
        "reason": errno_text(&errno.into()),
    })
}

/// Limit of one report per second for each node and direction.
#[derive(Default)]
struct ErrorThrottle {
    pending: Vec<Arc<IoErrors>>,
    /// When the next error of a node and direction may be reported.
    blocked_until: HashMap<(String, bool), Instant>,
}

impl ErrorThrottle {
    fn add(&mut self, cell: Arc<IoErrors>) {
        self.pending.push(cell);
    }

    /// When the next error is due.
    fn next_due(&self) -> Option<Instant> {
        let times = self
            .pending
            .iter()
            .map(|cell| self.blocked_until.get(&key(cell)));
        // (Errors that are not blocked have been reported already.)
        times.flatten().min().copied()
    }

    /// Reports all errors that are due; of several errors of an export, the last one.
    fn report_due(
        &mut self,
        now: Instant,
        mut report: impl FnMut(&IoErrors, (Errno, ErrorAction)),
    ) {
        let ErrorThrottle {
            pending,
            blocked_until,
        } = self;
        blocked_until.retain(|_, until| *until > now);
        pending.retain(|cell| {
            if blocked_until.contains_key(&key(cell)) {
                return true;
            }
            if let Some(error) = cell.take() {
                report(cell, error);
                blocked_until.insert(key(cell), now + PERIOD);
            }
            false
        });
    }
}

/// Limit of one log line per minute for reports that were dropped because the mailbox was full.
#[derive(Default)]
struct DroppedThrottle {
    /// How many have been logged.
    logged: u64,
    /// When the next line may be logged.
    blocked_until: Option<Instant>,
}

impl DroppedThrottle {
    /// When the next line is due, if `dropped` reports have been dropped so far.
    fn next_due(&self, dropped: u64) -> Option<Instant> {
        self.blocked_until.filter(|_| dropped > self.logged)
    }

    /// The number of dropped reports to log now, if a line is due.
    fn take_due(&mut self, now: Instant, dropped: u64) -> Option<u64> {
        let blocked = self.blocked_until.is_some_and(|until| until > now);
        if dropped == self.logged || blocked {
            return None;
        }
        self.blocked_until = Some(now + DROPPED_PERIOD);
        Some(dropped - std::mem::replace(&mut self.logged, dropped))
    }
}

/// Node and direction of an error.
fn key(cell: &IoErrors) -> (String, bool) {
    (cell.node.clone(), cell.reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iothread::ExportReports;

    #[test]
    fn errors_are_reported_once_per_second_node_and_direction() {
        let (reports, mailbox) = iothread::mailbox();
        let exports = [("e", "n"), ("f", "n"), ("g", "m")]
            .map(|(export, node)| ExportReports::new(reports.clone(), export, node));
        let mut throttle = ErrorThrottle::default();
        let mut reported = |now: Instant| {
            for report in mailbox.try_iter() {
                if let Report::Failed(cell) = report {
                    throttle.add(cell);
                }
            }
            let mut reported = Vec::new();
            throttle.report_due(now, |cell, (errno, _)| {
                reported.push((cell.export.clone(), cell.reads, errno));
            });
            (reported, throttle.next_due())
        };
        let start = Instant::now();
        let entry = |export: &str, reads, errno| (export.to_owned(), reads, errno);
        exports[0].failed(true, Errno::IO);
        exports[2].failed(true, Errno::IO);
        exports[0].failed(false, Errno::IO);
        let all = ["e", "g"].map(|export| entry(export, true, Errno::IO));
        let (first, next) = reported(start);
        assert_eq!(first[..2], all);
        assert_eq!(first[2], entry("e", false, Errno::IO));
        assert_eq!(next, None);
        // Within the second, of the same node.
        for errno in [Errno::IO, Errno::NOSPC] {
            exports[0].failed(true, errno);
        }
        exports[1].failed(true, Errno::IO);
        let later = start + PERIOD;
        assert_eq!(reported(start + PERIOD / 2), (vec![], Some(later)));
        let after = vec![entry("e", true, Errno::NOSPC)];
        assert_eq!(reported(later), (after, Some(later + PERIOD)));
        let last = vec![entry("f", true, Errno::IO)];
        assert_eq!(reported(later + PERIOD), (last, None));
    }

    #[test]
    fn dropped_reports_are_logged_at_once_and_then_once_per_minute() {
        let mut throttle = DroppedThrottle::default();
        let start = Instant::now();
        assert_eq!(
            (throttle.take_due(start, 0), throttle.next_due(0)),
            (None, None)
        );
        assert_eq!(
            (throttle.take_due(start, 3), throttle.next_due(3)),
            (Some(3), None)
        );
        let later = start + DROPPED_PERIOD;
        let soon = start + DROPPED_PERIOD / 2;
        assert_eq!(throttle.take_due(soon, 10), None);
        assert_eq!(throttle.next_due(10), Some(later));
        assert_eq!(
            (throttle.take_due(later, 12), throttle.next_due(12)),
            (Some(9), None)
        );
        assert_eq!(throttle.take_due(later + 2 * DROPPED_PERIOD, 12), None);
    }
}
