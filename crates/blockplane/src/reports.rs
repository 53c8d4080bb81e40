//! Tells monitors of what went wrong on iothreads, errors of a disk at most once per second.
//!
//! A thread of its own, since nobody else may wait for the second to pass.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use data_plane::{Errno, IoErrors, Report, Reports};
use qmp::Handle;
use serde_json::{Value, json};

use crate::reason::reason;

/// How long an error of a node and direction keeps the next from being told, as in the field.
const PERIOD: Duration = Duration::from_secs(1);

/// Starts it. It ends with the last who could report something.
pub(crate) fn spawn(events: Handle) -> io::Result<Reports> {
    let (reports, mailbox) = data_plane::mailbox();
    std::thread::Builder::new()
        .name("reports".into())
        .spawn(move || run(&mailbox, &events))?;
    Ok(reports)
}

fn run(mailbox: &Receiver<Report>, events: &Handle) {
    let mut errors = Throttle::default();
    loop {
        let report = match errors.next() {
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
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        errors.tell(Instant::now(), |cell, errno| {
            log(cell, errno);
            events.emit("BLOCK_IO_ERROR", io_error(cell, errno));
        });
    }
}

/// As seldom as the event: the first of a second, and the last.
fn log(cell: &IoErrors, errno: Errno) {
    if errno == Errno::FAULT {
        // The guest's memory has gone, and no disk has failed.
        return;
    }
    let advice = if errno == Errno::NOSPC {
        "make space where the image lies: the guest was told of an error, and may try again"
    } else {
        "look at the disk below, as with dmesg: the guest was told of an error"
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

fn io_error(cell: &IoErrors, errno: Errno) -> Value {
    json!({
        "device": "",
        "node-name": cell.node,
        "export": cell.export,
        "operation": if cell.reads { "read" } else { "write" },
        "action": "report",
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
    fn tell(&mut self, now: Instant, mut tell: impl FnMut(&IoErrors, Errno)) {
        let Throttle {
            waiting,
            closed_until,
        } = self;
        closed_until.retain(|_, until| *until > now);
        waiting.retain(|cell| {
            if closed_until.contains_key(&key(cell)) {
                return true;
            }
            if let Some(errno) = cell.take() {
                tell(cell, errno);
                closed_until.insert(key(cell), now + PERIOD);
            }
            false
        });
    }
}

fn key(cell: &IoErrors) -> (String, bool) {
    (cell.node.clone(), cell.reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_plane::ExportReports;

    #[test]
    fn one_per_second_node_and_direction_and_the_last_of_them() {
        let (reports, mailbox) = data_plane::mailbox();
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
            throttle.tell(now, |cell, errno| {
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
}
