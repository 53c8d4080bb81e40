//! How long the loop polls before it blocks.
//!
//! Waking a thread costs tens of microseconds on many machines, so a loop that is about to be
//! needed again should not go to sleep. The window grows while blocking turned out to be short
//! enough that polling would have caught the event, and shrinks (to nothing, by default) when an
//! event came so late that polling was wasted: an idle loop does not poll at all.

/// What an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollSettings {
    /// Longest time to poll, in nanoseconds; 0 turns polling off.
    pub max_ns: u64,
    /// The window is multiplied by this to grow; 0 means 2.
    pub grow: u64,
    /// The window is divided by this to shrink; 0 means that it drops to nothing.
    pub shrink: u64,
}

impl Default for PollSettings {
    /// The field's default: at most 32,768 ns.
    fn default() -> Self {
        PollSettings {
            max_ns: 32_768,
            grow: 0,
            shrink: 0,
        }
    }
}

/// The window that polling starts with once it seems worth while.
const FIRST_WINDOW_NS: u64 = 4_000;

/// The current window.
#[derive(Debug)]
pub struct Window {
    settings: PollSettings,
    ns: u64,
}

impl Window {
    /// Starts closed: the first waits tell whether polling pays.
    #[must_use]
    pub fn new(settings: PollSettings) -> Self {
        Window { settings, ns: 0 }
    }

    /// How long to poll now, in nanoseconds.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.ns
    }

    /// Changes the settings; the window stays within them.
    pub fn set(&mut self, settings: PollSettings) {
        self.settings = settings;
        self.ns = self.ns.min(settings.max_ns);
    }

    /// Learns from one wait: `idle_ns` is the time from the last work to the next event, polling
    /// and blocking together.
    pub fn learn(&mut self, idle_ns: u64) {
        let PollSettings {
            max_ns,
            grow,
            shrink,
        } = self.settings;
        if idle_ns <= self.ns {
            return;
        }
        self.ns = if idle_ns > max_ns {
            self.ns.checked_div(shrink).unwrap_or(0)
        } else if self.ns == 0 {
            FIRST_WINDOW_NS.min(max_ns)
        } else {
            self.ns
                .saturating_mul(if grow == 0 { 2 } else { grow })
                .min(max_ns)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_while_waits_are_short_and_closes_after_a_long_one() {
        let mut window = Window::new(PollSettings::default());
        assert_eq!(window.ns(), 0);
        window.learn(20_000);
        assert_eq!(window.ns(), 4_000);
        window.learn(20_000);
        window.learn(20_000);
        assert_eq!(window.ns(), 16_000);
        window.learn(10_000);
        assert_eq!(window.ns(), 16_000, "caught: keep");
        window.learn(20_000);
        window.learn(32_000 + 700);
        assert_eq!(window.ns(), 32_768, "capped");
        window.learn(1_000_000);
        assert_eq!(window.ns(), 0);
    }

    #[test]
    fn settings_bound_the_window_at_once() {
        let mut window = Window::new(PollSettings {
            max_ns: 1_000_000,
            grow: 10,
            shrink: 2,
        });
        for _ in 0..5 {
            window.learn(900_000);
        }
        assert_eq!(window.ns(), 1_000_000);
        window.learn(2_000_000);
        assert_eq!(window.ns(), 500_000);
        window.set(PollSettings {
            max_ns: 0,
            grow: 0,
            shrink: 0,
        });
        assert_eq!(window.ns(), 0);
        window.learn(1);
        assert_eq!(window.ns(), 0, "off means off");
    }
}
