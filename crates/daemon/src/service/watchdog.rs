//! Watchdog of the service manager (`WATCHDOG_USEC`): the main thread pings every iothread, and a keep-alive is due when all have
//! replied.
//!
//! A ping is a message like any other, so a reply means that the event loop runs. If an iothread is stuck, its reply is
//! missing, the service manager gets no keep-alive and restarts the daemon, which is the purpose of a watchdog. In each
//! period all iothreads are pinged twice, and replies are checked a quarter of the period later. Without a watchdog
//! there are no pings, and an idle daemon sleeps.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use crate::error::BoxError;

/// Shortest supported period. In a shorter one an iothread may be late only because other threads run.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// Parses the period in which the service manager expects a keep-alive; `None` if it expects none, or from another
/// process.
pub(crate) fn parse_watchdog_period(
    usec: Option<OsString>,
    pid: Option<OsString>,
) -> Result<Option<Duration>, BoxError> {
    let Some(usec) = usec else { return Ok(None) };
    if pid.is_some_and(|pid| pid != *std::process::id().to_string()) {
        return Ok(None);
    }
    match usec.to_str().and_then(|usec| usec.parse().ok()) {
        Some(usec) if usec > 0 => {
            let period = Duration::from_micros(usec);
            if period < MIN_PERIOD {
                tracing::warn!(
                    usec,
                    advice = "set WatchdogSec= to several seconds",
                    "WATCHDOG_USEC is too short: using 100 ms, and the service manager may end the daemon"
                );
            }
            Ok(Some(period.max(MIN_PERIOD)))
        }
        _ => Err(format!(
            "WATCHDOG_USEC cannot be '{}': a positive number of microseconds is expected",
            usec.to_string_lossy()
        )
        .into()),
    }
}

/// Pings iothreads and checks their replies.
pub(crate) struct IothreadWatchdog {
    /// Time between two steps: sending pings, and checking the replies.
    interval: Duration,
    next_step_at: Instant,
    /// Pings without a reply; `None` when the next step is to send pings.
    pending_pings: Option<Vec<PendingPing>>,
}

/// A ping to an iothread that has not replied yet.
struct PendingPing {
    iothread: String,
    reply: Receiver<()>,
    /// The missing reply was logged.
    is_logged: bool,
}

impl IothreadWatchdog {
    /// Starts with a round of pings, which is due at once.
    pub(crate) fn new(period: Duration) -> Self {
        IothreadWatchdog {
            interval: period / 4,
            next_step_at: Instant::now(),
            pending_pings: None,
        }
    }

    /// When [`IothreadWatchdog::ping_or_check_replies`] is due.
    pub fn next_step_at(&self) -> Instant {
        self.next_step_at
    }

    /// Sends pings, or checks the replies to the last ones. True if all iothreads have replied and a keep-alive is due.
    /// `ping_all` sends a ping to every iothread and returns their names.
    pub fn ping_or_check_replies(
        &mut self,
        ping_all: impl FnOnce() -> Vec<(String, Receiver<()>)>,
    ) -> bool {
        self.next_step_at = Instant::now() + self.interval;
        let Some(pending) = &mut self.pending_pings else {
            let pings = ping_all().into_iter().map(|(iothread, reply)| PendingPing {
                iothread,
                reply,
                is_logged: false,
            });
            self.pending_pings = Some(pings.collect());
            return false;
        };
        // A closed channel is as good as a reply: the iothread was removed. (A failed one would have ended the process.)
        pending.retain(|ping| matches!(ping.reply.try_recv(), Err(TryRecvError::Empty)));
        for ping in pending.iter_mut().filter(|ping| !ping.is_logged) {
            ping.is_logged = true;
            tracing::error!(
                iothread = ping.iothread,
                advice = "look for a disk that hangs (dmesg, /proc/PID/task/*/stack); unless it responds, \
                    the service manager restarts the daemon",
                "an iothread does not respond"
            );
        }
        let all_replied = pending.is_empty();
        if all_replied {
            self.pending_pings = None;
        }
        all_replied
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn keep_alive_waits_for_all_replies_even_late_ones_but_not_of_removed_iothreads() {
        let mut watchdog = IothreadWatchdog::new(Duration::from_secs(60));
        let (sender, reply) = channel();
        let (late_sender, late_reply) = channel();
        let (removed_sender, removed_reply) = channel::<()>();
        let replies = [("io0", reply), ("io1", late_reply), ("io2", removed_reply)];
        let ping = || replies.map(|(name, reply)| (name.to_owned(), reply)).into();
        assert!(!watchdog.ping_or_check_replies(ping), "only pings so far");
        sender.send(()).unwrap();
        drop(removed_sender);
        // One reply is missing, and no new ping is sent.
        for _ in 0..2 {
            assert!(!watchdog.ping_or_check_replies(Vec::new));
        }
        late_sender.send(()).unwrap();
        assert!(watchdog.ping_or_check_replies(Vec::new));
        assert!(!watchdog.ping_or_check_replies(Vec::new), "pings again");
        // Without iothreads the main thread is enough.
        assert!(watchdog.ping_or_check_replies(Vec::new));
    }

    #[test]
    fn watchdog_period_of_another_process_is_ignored() {
        let period = |usec: &str, pid: Option<u32>| {
            parse_watchdog_period(Some(usec.into()), pid.map(|pid| pid.to_string().into()))
        };
        let own = std::process::id();
        let second = Some(Duration::from_secs(1));
        assert_eq!(period("1000000", None).unwrap(), second);
        assert_eq!(period("1000000", Some(own)).unwrap(), second);
        assert_eq!(period("1000000", Some(own + 1)).unwrap(), None);
        assert_eq!(period("1", None).unwrap(), Some(MIN_PERIOD));
        for wrong in ["", "0", "-1", "1s"] {
            let error = period(wrong, None).unwrap_err().to_string();
            assert!(error.contains("WATCHDOG_USEC"), "{error}");
        }
    }
}
