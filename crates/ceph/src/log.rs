//! The log of librados and librbd, as events of `tracing`.
//!
//! The libraries offer no function for their log: they write to standard error, to the system's log or to a file. So the "file" is a
//! pipe, opened by its name under `/proc/self/fd`, and a thread reads it. A connection has one log, which names no image: events have
//! the names of all images of the connection.

mod limit;
mod line;
mod pipe;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::Key;
use limit::{LineLimit, Verdict};
use line::Severity;

pub(crate) use pipe::LogPipe;

/// Part of the line of a client that a monitor refuses. librados returns an error when all monitors that it asks have refused it; while
/// one of them does not answer, only the time is over in the end.
const REFUSAL: &str = "handle_auth_bad_method";

/// Names for the events of a connection's log, and its last error.
#[derive(Debug)]
pub(crate) struct LogContext {
    /// Never emitted.
    key: Option<Key>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Addresses of monitors, as configured.
    monitors: String,
    /// Names of the images that are open, or being opened.
    images: Vec<String>,
    last_error: Option<String>,
    /// When a monitor first refused the client's way of authentication, or its key.
    refused_at: Option<Instant>,
    limit: LineLimit,
}

impl LogContext {
    /// That of a connection without images.
    pub(crate) fn new(monitors: String, key: Option<Key>) -> Self {
        LogContext {
            key,
            state: Mutex::new(State {
                monitors,
                images: Vec::new(),
                last_error: None,
                refused_at: None,
                limit: LineLimit::new(Instant::now()),
            }),
        }
    }

    /// Addresses of monitors.
    pub(crate) fn monitors(&self) -> String {
        self.lock().monitors.clone()
    }

    /// Sets the addresses of monitors, when the configuration is read.
    pub(crate) fn set_monitors(&self, monitors: String) {
        self.lock().monitors = monitors;
    }

    /// Number of images that are open, or being opened.
    pub(crate) fn images(&self) -> usize {
        self.lock().images.len()
    }

    /// Names an image in events until [`remove_image`](Self::remove_image).
    pub(crate) fn add_image(&self, name: &str) {
        self.lock().images.push(name.to_owned());
    }

    /// No longer names an image.
    pub(crate) fn remove_image(&self, name: &str) {
        let mut state = self.lock();
        if let Some(index) = state.images.iter().position(|image| image == name) {
            state.images.swap_remove(index);
        }
    }

    /// The last error as part of a message: in parentheses after a space, or empty.
    pub(crate) fn last_error_detail(&self) -> String {
        let state = self.lock();
        let detail = |error| format!(" (log of librados: {error})");
        state.last_error.as_ref().map(detail).unwrap_or_default()
    }

    /// When a monitor first refused the client.
    pub(crate) fn refused_at(&self) -> Option<Instant> {
        self.lock().refused_at
    }

    /// Emits a line of the log, unless it is a warning or an error and there were too many of them, and keeps the last error.
    pub(crate) fn emit(&self, line: &str) {
        let redacted = self.key.as_ref().map(|key| key.redact(line));
        let line = line::parse(redacted.as_deref().unwrap_or(line));
        let (monitors, images, verdict) = {
            let mut state = self.lock();
            if line.severity == Severity::Error {
                if line.text.contains(REFUSAL) {
                    state.refused_at.get_or_insert_with(Instant::now);
                }
                state.last_error = Some(line.text.to_owned());
            }
            let verdict = match line.severity {
                Severity::Error | Severity::Warning => state.limit.count(Instant::now()),
                // Only a configuration that asks for them has these.
                Severity::Debug => Verdict::Emit { left_out: 0 },
            };
            (state.monitors.clone(), state.images.join(","), verdict)
        };
        let Verdict::Emit { left_out } = verdict else {
            return;
        };
        if left_out > 0 {
            tracing::warn!(
                monitors,
                images,
                lines = left_out,
                "lines of Ceph's log were left out, since too many came at once"
            );
        }
        let text = line.text;
        // None is an error of the daemon: where a call fails, its caller reports that. librados also has errors to report about
        // what is configured so, such as a keyring that is not needed.
        match line.severity {
            Severity::Error => tracing::warn!(monitors, images, "ceph: {text}"),
            Severity::Warning => tracing::info!(monitors, images, "ceph: {text}"),
            Severity::Debug => tracing::debug!(monitors, images, "ceph: {text}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_kept_for_messages() {
        let log = LogContext::new("192.0.2.1:3300".to_owned(), None);
        assert_eq!(log.last_error_detail(), "");
        log.emit("2026-01-02T03:04:05.678+0000 7f0a1b2c3d40 -1 monclient(hunting): first");
        log.emit("2026-01-02T03:04:05.679+0000 7f0a1b2c3d40 -1 monclient(hunting): second");
        log.emit("2026-01-02T03:04:05.680+0000 7f0a1b2c3d40  0 monclient: third");
        assert_eq!(
            log.last_error_detail(),
            " (log of librados: monclient(hunting): second)"
        );
    }

    #[test]
    fn an_image_opened_twice_is_named_until_both_are_closed() {
        let log = LogContext::new(String::new(), None);
        for name in ["rbd/a", "rbd/b", "rbd/a"] {
            log.add_image(name);
        }
        log.remove_image("rbd/a");
        let mut images = log.lock().images.clone();
        images.sort();
        assert_eq!(images, ["rbd/a", "rbd/b"]);
    }
}
