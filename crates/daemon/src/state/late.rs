//! Looks now and then whether requests take longer than they may. What comes of it is told by those who tell of errors.
//!
//! A thread of its own, so that iothreads do nothing for it while all is well: only queues that have something in flight
//! at that moment are asked, and look at what they have.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use iothread::ExportReports;
use telemetry::counters::{Clock, Scale};

/// So often in the time that a request may take.
const LOOKS_PER_TIMEOUT: u32 = 4;

/// An export.
struct Watched {
    reports: Weak<ExportReports>,
    timeout: Duration,
    /// What was taken before this was looked for, in ticks.
    seen: u64,
}

#[derive(Default)]
struct Shared {
    watched: Mutex<Vec<Watched>>,
    /// There is another one.
    more: Condvar,
}

/// Hears which exports there are.
#[derive(Clone)]
pub(crate) struct Late(Arc<Shared>);

impl Late {
    /// Starts the thread, which ends with the program.
    pub fn spawn() -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let looker = shared.clone();
        std::thread::Builder::new()
            .name("late".into())
            .spawn(move || {
                loop {
                    look(&looker);
                }
            })?;
        Ok(Late(shared))
    }

    /// Requests of this export are told of that take longer, until it is gone. Never if it is no time.
    pub fn watch(&self, reports: &Arc<ExportReports>, timeout: Duration) {
        if timeout.is_zero() {
            return;
        }
        self.0.watched().push(Watched {
            reports: Arc::downgrade(reports),
            timeout,
            seen: 0,
        });
        self.0.more.notify_one();
    }
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until it is time, and looks once at all exports.
fn look(shared: &Shared) {
    let watched = shared.watched();
    let shortest = watched.iter().map(|watched| watched.timeout).min();
    let mut watched = match shortest {
        None => shared
            .more
            .wait(watched)
            .unwrap_or_else(PoisonError::into_inner),
        Some(timeout) => {
            let period = timeout / LOOKS_PER_TIMEOUT;
            let waited = shared.more.wait_timeout(watched, period);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    };
    watched.retain_mut(|watched| {
        let Some(reports) = watched.reports.upgrade() else {
            return false;
        };
        let timeout_ns = u64::try_from(watched.timeout.as_nanos()).unwrap_or(u64::MAX);
        let until = Clock::new()
            .now()
            .saturating_sub(Scale::new().to_ticks(timeout_ns));
        if until > watched.seen {
            reports.waiting().look_for_late(watched.seen, until);
            watched.seen = until;
        }
        true
    });
}
