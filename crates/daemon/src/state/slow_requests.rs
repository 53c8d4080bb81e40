//! Watchdog for requests that take longer than their export's `request-timeout`. It only finds them; [`super::reports`] logs them
//! and sends the events.
//!
//! A thread of its own, so that iothreads do nothing for it while all requests are fast: the watchdog only wakes queues that
//! have requests in flight, and those look at the age of each.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use iothread::ExportReporter;
use telemetry::counters::{Scale, TickClock};

/// Checks per timeout, so that a late request is found at most a quarter of the timeout late.
const CHECKS_PER_TIMEOUT: u32 = 4;

/// An export with a timeout.
struct WatchedExport {
    reports: Weak<ExportReporter>,
    timeout: Duration,
    /// Requests that were admitted before this time, in ticks, have been checked already.
    checked_until: u64,
}

/// The exports that the thread checks; handles add to them.
#[derive(Default)]
struct WatchedExports {
    /// All exports with a timeout, until they are dropped.
    exports: Mutex<Vec<WatchedExport>>,
    /// Signalled when an export is added.
    added: Condvar,
}

/// Handle of the watchdog, to add exports.
#[derive(Clone)]
pub(crate) struct SlowRequestWatchdog(Arc<WatchedExports>);

impl SlowRequestWatchdog {
    /// Starts the thread, which ends with the program.
    pub fn spawn() -> io::Result<Self> {
        let watched = Arc::<WatchedExports>::default();
        let thread_exports = watched.clone();
        std::thread::Builder::new()
            .name("slow-requests".into())
            .spawn(move || {
                loop {
                    wait_and_check_late_requests_once(&thread_exports);
                }
            })?;
        Ok(SlowRequestWatchdog(watched))
    }

    /// Watches this export until it is dropped. A timeout of zero means none.
    pub fn watch_export_if_timeout_set(&self, reports: &Arc<ExportReporter>, timeout: Duration) {
        if timeout.is_zero() {
            return;
        }
        self.0.lock_exports().push(WatchedExport {
            reports: Arc::downgrade(reports),
            timeout,
            checked_until: 0,
        });
        self.0.added.notify_one();
    }
}

impl WatchedExports {
    /// Locks the list of exports.
    fn lock_exports(&self) -> MutexGuard<'_, Vec<WatchedExport>> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the next check, and checks all exports once.
fn wait_and_check_late_requests_once(watched: &WatchedExports) {
    let exports = watched.lock_exports();
    let shortest_timeout = exports.iter().map(|export| export.timeout).min();
    let mut exports = match shortest_timeout {
        None => watched
            .added
            .wait(exports)
            .unwrap_or_else(PoisonError::into_inner),
        Some(timeout) => {
            let period = timeout / CHECKS_PER_TIMEOUT;
            let waited = watched.added.wait_timeout(exports, period);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    };
    exports.retain_mut(|export| {
        let Some(reports) = export.reports.upgrade() else {
            return false;
        };
        let timeout_ns = u64::try_from(export.timeout.as_nanos()).unwrap_or(u64::MAX);
        let late_before = TickClock::of_process()
            .now()
            .saturating_sub(Scale::measure().to_ticks_rounded_up(timeout_ns));
        if late_before > export.checked_until {
            reports
                .queues()
                .send_report_late_to_queues(export.checked_until, late_before);
            export.checked_until = late_before;
        }
        true
    });
}
