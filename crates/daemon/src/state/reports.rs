//! Tells monitors of what went wrong on iothreads, errors of a disk at most once per second.
//!
//! A thread of its own, since nobody else may wait for the second to pass.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use iothread::{DroppedReports, Errno, ErrorAction, IoErrors, Report, Reports};
use qmp::Handle;
use serde_json::{Value, json};
use telemetry::counters::Scale;

use crate::reason::reason;

/// How long an error of a node and direction keeps the next from being told, as in the field.
const PERIOD: Duration = Duration::from_secs(1);

/// How often it is said at most that there was no room for reports.
const LOST_PERIOD: Duration = Duration::from_secs(60);

/// Starts it. It ends with the last who could report something.
pub(crate) fn spawn(events: Handle) -> io::Result<Reports> {
    let (reports, mailbox) = iothread::mailbox();
    let lost = reports.lost();
    std::thread::Builder::new()
        .name("reports".into())
        .spawn(move || run(&mailbox, &lost, &events))?;
    Ok(reports)
}

fn run(mailbox: &Receiver<Report>, lost: &DroppedReports, events: &Handle) {
    let mut errors = Throttle::default();
    let mut losses = Losses::default();
    loop {
        // Where there was no room there is something to take out: losses are seen behind it.
        let next = [errors.next(), losses.next(lost.count())];
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
                    advice = "look at the disk below, as with dmesg; they go on, and nothing was done about them",
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
        errors.tell(now, |cell, error| {
            log(cell, error);
            events.emit("BLOCK_IO_ERROR", io_error(cell, error));
        });
        if let Some(more) = losses.tell(now, lost.count()) {
            tracing::warn!(
                reports = more,
                advice = "query-blockstats has all requests that failed, this log all queues that were broken",
                "monitors were not told of everything: more went wrong at once than could be told"
            );
        }
    }
}

/// As seldom as the event: the first of a second, and the last.
fn log(cell: &IoErrors, (errno, action): (Errno, ErrorAction)) {
    if errno == Errno::FAULT {
        // The guest's memory has gone, and no disk has failed.
        return;
    }
    let advice = match (action, errno) {
        (ErrorAction::Report, Errno::NOSPC) => {
            "make space where the image lies: the guest was told of an error, and may try again"
        }
        (ErrorAction::Report, _) => {
            "look at the disk below, as with dmesg: the guest was told of an error"
        }
        (ErrorAction::Stop, Errno::NOSPC) => {
            "make space where the image lies, and then say block-export-resume: the request waits for that"
        }
        (ErrorAction::Stop, _) => {
            "mend the disk below, and then say block-export-resume: the request waits for that"
        }
        (ErrorAction::Ignore, _) => {
            "the guest was told that it succeeded, as rerror or werror have it: data may be lost"
        }
    };
    tracing::warn!(
        export = cell.export,
        node = cell.node,
        operation = if cell.reads { "read" } else { "write" },
        error = reason(&errno.into()),
        advice,
        "a request to the disk has failed"
    );
}

fn io_error(cell: &IoErrors, (errno, action): (Errno, ErrorAction)) -> Value {
    json!({
        "device": "",
        "node-name": cell.node,
        "export": cell.export,
        "operation": if cell.reads { "read" } else { "write" },
        "action": action.name(),
        "nospace": errno == Errno::NOSPC,
        "reason": reason(&errno.into()),
    })
}

/// Errors that wait until they may be told.
#[derive(Default)]
struct Throttle {
    waiting: Vec<Arc<IoErrors>>,
    /// When the next one of a node and direction may be told.
    closed_until: HashMap<(String, bool), Instant>,
}

impl Throttle {
    fn add(&mut self, cell: Arc<IoErrors>) {
        self.waiting.push(cell);
    }

    /// When something is to be told.
    fn next(&self) -> Option<Instant> {
        let times = self
            .waiting
            .iter()
            .map(|cell| self.closed_until.get(&key(cell)));
        // (One that may be told at once was told.)
        times.flatten().min().copied()
    }

    /// Tells those whose time has come, each with its last error.
    fn tell(&mut self, now: Instant, mut tell: impl FnMut(&IoErrors, (Errno, ErrorAction))) {
        let Throttle {
            waiting,
            closed_until,
        } = self;
        closed_until.retain(|_, until| *until > now);
        waiting.retain(|cell| {
            if closed_until.contains_key(&key(cell)) {
                return true;
            }
            if let Some(error) = cell.take() {
                tell(cell, error);
                closed_until.insert(key(cell), now + PERIOD);
            }
            false
        });
    }
}

/// What was said of reports that found no room.
#[derive(Default)]
struct Losses {
    said: u64,
    /// When the next may be said.
    closed_until: Option<Instant>,
}

impl Losses {
    /// When more is to be said, `lost` being how many there are.
    fn next(&self, lost: u64) -> Option<Instant> {
        self.closed_until.filter(|_| lost > self.said)
    }

    /// How many are to be said to be lost, if it is time to.
    fn tell(&mut self, now: Instant, lost: u64) -> Option<u64> {
        let open = self.closed_until.is_none_or(|until| until <= now);
        if lost == self.said || !open {
            return None;
        }
        self.closed_until = Some(now + LOST_PERIOD);
        Some(lost - std::mem::replace(&mut self.said, lost))
    }
}

fn key(cell: &IoErrors) -> (String, bool) {
    (cell.node.clone(), cell.reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iothread::ExportReports;

    #[test]
    fn one_per_second_node_and_direction_and_the_last_of_them() {
        let (reports, mailbox) = iothread::mailbox();
        let exports = [("e", "n"), ("f", "n"), ("g", "m")]
            .map(|(export, node)| ExportReports::new(reports.clone(), export, node));
        let mut throttle = Throttle::default();
        let mut told = |now: Instant| {
            for report in mailbox.try_iter() {
                if let Report::Failed(cell) = report {
                    throttle.add(cell);
                }
            }
            let mut told = Vec::new();
            throttle.tell(now, |cell, (errno, _)| {
                told.push((cell.export.clone(), cell.reads, errno));
            });
            (told, throttle.next())
        };
        let start = Instant::now();
        let entry = |export: &str, reads, errno| (export.to_owned(), reads, errno);
        exports[0].failed(true, Errno::IO);
        exports[2].failed(true, Errno::IO);
        exports[0].failed(false, Errno::IO);
        let all = ["e", "g"].map(|export| entry(export, true, Errno::IO));
        let (first, next) = told(start);
        assert_eq!(first[..2], all);
        assert_eq!(first[2], entry("e", false, Errno::IO));
        assert_eq!(next, None);
        // Within the second, of the same node.
        for errno in [Errno::IO, Errno::NOSPC] {
            exports[0].failed(true, errno);
        }
        exports[1].failed(true, Errno::IO);
        let later = start + PERIOD;
        assert_eq!(told(start + PERIOD / 2), (vec![], Some(later)));
        let after = vec![entry("e", true, Errno::NOSPC)];
        assert_eq!(told(later), (after, Some(later + PERIOD)));
        let last = vec![entry("f", true, Errno::IO)];
        assert_eq!(told(later + PERIOD), (last, None));
    }

    #[test]
    fn what_found_no_room_is_said_at_once_and_then_once_per_minute() {
        let mut losses = Losses::default();
        let start = Instant::now();
        assert_eq!((losses.tell(start, 0), losses.next(0)), (None, None));
        assert_eq!((losses.tell(start, 3), losses.next(3)), (Some(3), None));
        let later = start + LOST_PERIOD;
        let soon = start + LOST_PERIOD / 2;
        assert_eq!(losses.tell(soon, 10), None);
        assert_eq!(losses.next(10), Some(later));
        assert_eq!((losses.tell(later, 12), losses.next(12)), (Some(9), None));
        assert_eq!(losses.tell(later + 2 * LOST_PERIOD, 12), None);
    }
}
