//! Watchdog of the service manager: the main thread asks every iothread, and each has to answer.
//!
//! An iothread is asked by a message like any other, so an answer means that its loop goes round. One
//! that is stuck keeps the answer back, the service manager hears nothing, and ends and starts us:
//! that is what it is for. In a period there are two rounds of a question and, a quarter later, a look
//! at the answers; without a watchdog there is none of it, and an idle daemon sleeps.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The shortest period that is kept. In a shorter one an iothread may be late only because others run.
const SHORTEST: Duration = Duration::from_millis(100);

/// The period within which the service manager wants to hear from us; none when it does not, or means
/// another process.
pub(crate) fn period(
    usec: Option<OsString>,
    pid: Option<OsString>,
) -> Result<Option<Duration>, Failure> {
    let Some(usec) = usec else { return Ok(None) };
    if pid.is_some_and(|pid| pid != *std::process::id().to_string()) {
        return Ok(None);
    }
    match usec.to_str().and_then(|usec| usec.parse().ok()) {
        Some(usec) if usec > 0 => {
            let period = Duration::from_micros(usec);
            if period < SHORTEST {
                tracing::warn!(
                    usec,
                    advice = "set WatchdogSec= to some seconds",
                    "WATCHDOG_USEC is too short: a period of 100 ms is kept, and the service manager may end the daemon"
                );
            }
            Ok(Some(period.max(SHORTEST)))
        }
        _ => Err(format!(
            "WATCHDOG_USEC cannot be '{}': a number of microseconds above 0 is expected",
            usec.to_string_lossy()
        )
        .into()),
    }
}

/// Asks, and looks at the answers.
pub(crate) struct Watchdog {
    quarter: Duration,
    next: Instant,
    /// Those that were asked, with where they answer; `None` when the next thing is to ask.
    asked: Option<Vec<Asked>>,
}

struct Asked {
    name: String,
    answer: Receiver<()>,
    /// Its silence was logged.
    told: bool,
}

impl Watchdog {
    pub(crate) fn new(period: Duration) -> Self {
        Watchdog {
            quarter: period / 4,
            next: Instant::now(),
            asked: None,
        }
    }

    /// When it is to be called next.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Does what is next. True when all have answered: the service manager may hear so. `ask` asks
    /// all iothreads that there are, by name.
    pub fn turn(&mut self, ask: impl FnOnce() -> Vec<(String, Receiver<()>)>) -> bool {
        self.next = Instant::now() + self.quarter;
        let Some(asked) = &mut self.asked else {
            let asked = ask().into_iter().map(|(name, answer)| Asked {
                name,
                answer,
                told: false,
            });
            self.asked = Some(asked.collect());
            return false;
        };
        // One that has ended since was removed: had it failed, we were not there.
        asked.retain(|asked| matches!(asked.answer.try_recv(), Err(TryRecvError::Empty)));
        for silent in asked.iter_mut().filter(|silent| !silent.told) {
            silent.told = true;
            tracing::error!(
                iothread = silent.name,
                advice = "look for a disk that hangs (dmesg, /proc/PID/task/*/stack); unless it answers, \
                    the service manager ends the daemon and starts it again",
                "an iothread does not answer"
            );
        }
        let all = asked.is_empty();
        if all {
            self.asked = None;
        }
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn watchdog() -> Watchdog {
        Watchdog::new(Duration::from_secs(60))
    }

    #[test]
    fn all_have_to_answer_and_a_late_answer_counts() {
        let mut watchdog = watchdog();
        let (sender, answer) = channel();
        let (other, late) = channel();
        let ask = || vec![("io0".to_owned(), answer), ("io1".to_owned(), late)];
        assert!(!watchdog.turn(ask), "nobody has answered yet");
        sender.send(()).unwrap();
        assert!(!watchdog.turn(Vec::new), "one is silent");
        assert!(
            !watchdog.turn(Vec::new),
            "and still is: it is not asked again"
        );
        other.send(()).unwrap();
        assert!(watchdog.turn(Vec::new));
        assert!(!watchdog.turn(Vec::new), "asks anew");
        assert!(
            watchdog.turn(Vec::new),
            "nobody to ask is the main thread alone"
        );
    }

    #[test]
    fn one_that_was_removed_is_not_waited_for() {
        let mut watchdog = watchdog();
        let (sender, answer) = channel();
        watchdog.turn(|| vec![("io0".to_owned(), answer)]);
        drop(sender);
        assert!(watchdog.turn(Vec::new));
    }

    #[test]
    fn a_period_is_for_the_process_that_it_names() {
        let period = |usec: &str, pid: Option<u32>| {
            period(Some(usec.into()), pid.map(|pid| pid.to_string().into()))
        };
        let own = std::process::id();
        let second = Some(Duration::from_secs(1));
        assert_eq!(period("1000000", None).unwrap(), second);
        assert_eq!(period("1000000", Some(own)).unwrap(), second);
        assert_eq!(period("1000000", Some(own + 1)).unwrap(), None);
        assert_eq!(period("1", None).unwrap(), Some(SHORTEST));
        for wrong in ["", "0", "-1", "1s"] {
            let error = period(wrong, None).unwrap_err().to_string();
            assert!(error.contains("WATCHDOG_USEC"), "{error}");
        }
    }
}
