//! A limit on the time without a line on a guest's console.
//!
//! A firmware or a boot loader that waits for its disk prints nothing, and waits for ever. The time for which QEMU's threads
//! were ready to run and had no processor is not counted: on a busy host a guest is slow, and does not hang.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Shorter ones are everyday life.
const NOTICEABLE_DELAY: Duration = Duration::from_millis(500);

/// The time limit after which a guest without output is assumed to hang.
pub(crate) struct SilenceLimit {
    pid: u32,
    ends: Instant,
    delay: RunDelay,
}

impl SilenceLimit {
    /// Begins now, for the QEMU of this number.
    pub(crate) fn new(limit: Duration, pid: u32) -> Self {
        Self {
            pid,
            ends: Instant::now() + limit,
            delay: RunDelay::of(pid),
        }
    }

    /// When it has lasted too long, as far as is known.
    pub(crate) fn ends(&self) -> Instant {
        self.ends
    }

    /// By the time for which QEMU has had no processor; whether there was a noticeable one.
    pub(crate) fn prolong(&mut self) -> bool {
        let now = RunDelay::of(self.pid);
        let delay = now.since(&self.delay);
        self.delay = now;
        self.ends += delay;
        delay > NOTICEABLE_DELAY
    }
}

/// The delay of each thread so far, in nanoseconds.
#[derive(Debug, Default)]
struct RunDelay(HashMap<String, u64>);

impl RunDelay {
    /// Of a process; empty where the kernel does not say.
    fn of(pid: u32) -> Self {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return Self::default();
        };
        let delay = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
            let thread = entry.file_name().into_string().ok()?;
            Some((thread, parse(&text)?))
        };
        Self(threads.filter_map(|entry| delay(entry.ok()?)).collect())
    }

    /// The longest delay of a thread since then.
    fn since(&self, then: &Self) -> Duration {
        let delay = |(thread, now): (&String, &u64)| {
            let then = then.0.get(thread).copied().unwrap_or_default();
            now.saturating_sub(then)
        };
        Duration::from_nanos(self.0.iter().map(delay).max().unwrap_or_default())
    }
}

/// Time on a processor, time waiting for one, and how often it got one.
fn parse(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_waiting_thread_determines_the_run_delay() {
        assert_eq!(parse("6027 2047 3\n"), Some(2047));
        let delays = |pairs: &[(&str, u64)]| {
            RunDelay(pairs.iter().map(|(t, d)| ((*t).to_owned(), *d)).collect())
        };
        let then = delays(&[("1", 100), ("2", 50)]);
        let now = delays(&[("1", 110), ("2", 90), ("3", 20)]);
        assert_eq!(now.since(&then), Duration::from_nanos(40));
        assert_eq!(RunDelay::default().since(&then), Duration::ZERO);
        assert!(!RunDelay::of(std::process::id()).0.is_empty());
    }
}
