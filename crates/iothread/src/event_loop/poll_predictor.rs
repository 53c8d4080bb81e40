//! Adaptive polling: learns how long each source takes to become ready, and how long polling for it pays.
//!
//! A source is a queue whose guest may send a request, or a queue whose disk may complete one. When the loop has run dry and then
//! has work again, the time between is a sample for the source that ended it. A [`PollPredictor`] counts a source's samples in a
//! small histogram that forgets, and computes a window from it: the time to poll that gains most.
//!
//! The gain is counted in the operator's own currency. `poll-max-ns` is the CPU time that one
//! spared wake-up is worth, so a window `w` gains `max * P(gap <= w) - E[min(gap, w)]` on average;
//! the best `w` may be none at all. Hence, without further rules: a source that takes 60 us is polled
//! for just over 60 us; one whose events come later than `max` on average, and none of them soon, is
//! not polled for; of one that is quick or slow in turns the quick part is polled for if it is
//! frequent enough; and a tail is cut off where it no longer pays.
//!
//! Until a source has shown [`TRUSTED_SAMPLES`] gaps, its window starts small after a gap within
//! `poll-max-ns`, grows (`poll-grow`) and shrinks (`poll-shrink`).
//!
//! Gaps alone would mislead where the guest's vCPU and this thread share a CPU: while we poll the guest
//! cannot run, and as soon as we block it answers at once, which looks like a gap that is worth polling
//! for. So a source also counts misses: windows that passed in vain, the event coming soon after.
//! Some are chance. After more than [`TOLERATED_MISSES`] the source is not polled for during twice as many
//! gaps with each one more, up to [`MAX_SKIPPED`]; each window that catches its event halves their count.
//!
//! And a wake-up is worth sparing only where it shows: a disk with a long queue of requests takes so long for
//! each that nothing is polled for (`LONG_FLIGHT_FACTOR`).
//!
//! All of this runs when the loop goes idle or was idle, and nothing per request. The limit of polling in all is in
//! [`crate::event_loop::poll_budget`].

/// Polling settings of an iothread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollSettings {
    /// Longest time to poll, in nanoseconds, and the CPU time that a spared wake-up is worth; 0 turns
    /// polling off.
    pub max_ns: u64,
    /// A window without history is multiplied by this to grow; 0 means 2.
    pub grow: u64,
    /// A window without history is divided by this to shrink; 0 means that it drops to nothing.
    pub shrink: u64,
    /// Share of a CPU that polling may use, in percent (`poll-cpu-max`); 100 and more is no limit,
    /// 0 turns polling off. See [`crate::event_loop::poll_budget`].
    pub cpu_max_percent: u32,
}

/// Default of `poll-max-ns`: a disk that answers within 100 us has answered by then, also where the
/// first answers are seen late because the thread had to be woken for them.
pub const DEFAULT_POLL_MAX_NS: u64 = 200_000;

impl Default for PollSettings {
    /// At most [`DEFAULT_POLL_MAX_NS`], on as much of a CPU as pays.
    fn default() -> Self {
        PollSettings {
            max_ns: DEFAULT_POLL_MAX_NS,
            grow: 0,
            shrink: 0,
            cpu_max_percent: 100,
        }
    }
}

/// The histogram divides `poll-max-ns` into so many equal parts: a window is at most a sixteenth of
/// what a wake-up is worth longer than it should be.
const HISTOGRAM_PARTS: u8 = 16;

/// Weight of a sample. More than one, so that a halved count is not zero at once.
const SAMPLE_WEIGHT: u8 = 8;

/// Counts are halved when they add up to this: the last 8 to 16 samples decide.
const FULL_TOTAL: u16 = 16 * SAMPLE_WEIGHT as u16;

/// Samples after which the histogram is trusted.
const TRUSTED_SAMPLES: u8 = 3;

/// Misses, less those that hits have made up for, that do not stop polling: a guest that has changed
/// its behaviour causes as many until its histogram has noticed.
const TOLERATED_MISSES: u8 = 3;

/// Gaps after which a source that polling never helps is tried again: a window of 200 us each thousand
/// gaps does not show, and a guest that was moved to a CPU of its own is noticed after so many.
pub const MAX_SKIPPED: u16 = 1024;

/// The window that polling starts with where there is no history.
const FIRST_WINDOW_NS: u64 = 4_000;

/// A disk with many requests in flight takes its gap times their number for each (Little's law). Once
/// that is so many times `poll-max-ns`, a wake-up does not show in it and is not polled for.
const LONG_FLIGHT_FACTOR: u64 = 2;

/// Statistics of the gaps of one kind of event.
#[derive(Clone, Copy, Debug, Default)]
struct GapStatistics {
    /// Mean of the last gaps, each cut off at where nothing is polled for any more.
    mean_ns: u64,
    /// By part of `poll-max-ns`: weight of the gaps that ended within it.
    part_counts: [u8; HISTOGRAM_PARTS as usize],
    /// Those beyond `poll-max-ns`.
    late_count: u8,
    /// How many samples there were, up to [`TRUSTED_SAMPLES`].
    sample_count: u8,
    /// Windows in vain, as [`GapStatistics::record_poll_outcome`] counts them.
    misses: u8,
    /// Number of further gaps that are not polled for.
    skips_left: u16,
    window_ns: u64,
}

impl GapStatistics {
    /// Adds a gap to the histogram, and determines the next window.
    fn add_gap_and_set_window(&mut self, settings: &PollSettings, gap_ns: u64) {
        let cut_ns = gap_ns.min(max_polled_flight_ns(settings));
        self.mean_ns = self.mean_ns - self.mean_ns / 8 + cut_ns / 8;
        let part_ns = histogram_part_ns(settings);
        let part = usize::try_from(gap_ns / part_ns).unwrap_or(usize::MAX);
        *self
            .part_counts
            .get_mut(part)
            .unwrap_or(&mut self.late_count) += SAMPLE_WEIGHT;
        if self.total_weight() >= FULL_TOTAL {
            for count in self.part_counts.iter_mut().chain([&mut self.late_count]) {
                *count /= 2;
            }
        }
        self.sample_count = TRUSTED_SAMPLES.min(self.sample_count + 1);
        self.window_ns = if self.sample_count == TRUSTED_SAMPLES {
            (u64::from(self.best_window_parts()) * part_ns).min(settings.max_ns)
        } else {
            grow_or_shrink_window(settings, self.window_ns, gap_ns)
        };
    }

    /// The window to poll for now.
    fn window_to_poll_ns(&self) -> u64 {
        if self.skips_left > 0 {
            0
        } else {
            self.window_ns
        }
    }

    /// Counts whether polling for a gap that has ended was in vain.
    fn record_poll_outcome(&mut self, settings: &PollSettings, gap_ns: u64, polled: PollOutcome) {
        if self.skips_left > 0 {
            self.skips_left -= 1;
            return;
        }
        let soon_ns = self.window_ns.saturating_add(settings.max_ns);
        match polled {
            PollOutcome::Found => self.misses /= 2,
            // An event that comes much later is no sign of a shared CPU: the histogram deals with it.
            PollOutcome::InVain if self.window_ns > 0 && gap_ns <= soon_ns => {
                let doublings = (self.misses + 1).saturating_sub(TOLERATED_MISSES);
                if doublings > 0 {
                    self.skips_left = 1 << doublings;
                }
                if self.skips_left < MAX_SKIPPED {
                    self.misses += 1;
                }
            }
            PollOutcome::InVain | PollOutcome::Not => {}
        }
    }

    /// Weight of all gaps in the histogram.
    fn total_weight(&self) -> u16 {
        let counts = self.part_counts.iter().map(|count| u16::from(*count));
        counts.sum::<u16>() + u16::from(self.late_count)
    }

    /// The window with the greatest gain, in parts of `poll-max-ns`; 0 when none gains anything.
    ///
    /// The unit of the gain is a part too: an event within it spares a wake-up, worth all
    /// [`HISTOGRAM_PARTS`]; an event that did not come before it costs one.
    fn best_window_parts(&self) -> u8 {
        let mut waiting = i32::from(self.total_weight());
        let (mut gain, mut best_gain, mut best) = (0, 0, 0);
        for (part, count) in (1..).zip(self.part_counts) {
            let count = i32::from(count);
            gain += i32::from(HISTOGRAM_PARTS) * count - waiting;
            waiting -= count;
            if gain > best_gain {
                (best_gain, best) = (gain, part);
            }
        }
        best
    }
}

/// Time of a request from which on nothing is polled for.
fn max_polled_flight_ns(settings: &PollSettings) -> u64 {
    settings.max_ns.saturating_mul(LONG_FLIGHT_FACTOR)
}

/// Length of one part of the histogram.
fn histogram_part_ns(settings: &PollSettings) -> u64 {
    settings.max_ns.div_ceil(HISTOGRAM_PARTS.into()).max(1)
}

/// The window after a gap when there are too few samples for the histogram.
fn grow_or_shrink_window(settings: &PollSettings, window_ns: u64, gap_ns: u64) -> u64 {
    let PollSettings {
        max_ns,
        grow,
        shrink,
        ..
    } = *settings;
    if gap_ns > max_ns {
        window_ns.checked_div(shrink).unwrap_or(0)
    } else if window_ns == 0 {
        FIRST_WINDOW_NS.min(max_ns)
    } else {
        let factor = if grow == 0 { 2 } else { grow };
        window_ns.saturating_mul(factor).min(max_ns)
    }
}

/// Outcome of polling in an idle period of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// It did not take place, or something else ended it.
    Not,
    /// Something was found before the window had passed.
    Found,
    /// The window passed.
    InVain,
}

/// The end of a time without work of the loop.
#[derive(Clone, Copy, Debug)]
pub struct IdleEnd {
    /// When the loop had work again, in nanoseconds on its clock.
    pub woke_ns: u64,
    /// The result of polling.
    pub polled: PollOutcome,
}

/// Side of a source that the next event is expected from. Each has gaps of its own: a disk that answers within 60 us is worth
/// polling for, also when its guest sends a request once a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AwaitedSide {
    /// Nothing is in flight: the next event is a request of the guest.
    #[default]
    Guest,
    /// Requests are in flight: the next event is most likely a completion.
    Disk {
        /// Number of requests in flight.
        in_flight: u32,
    },
    /// All disks are served by a library, whose own threads do their requests. Neither it nor the guest is polled for: polling could take
    /// the processor that these threads need, and a wake-up hardly shows in what they take.
    Library,
}

/// Predictor of how long polling for one source pays.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollPredictor {
    guest: GapStatistics,
    disk: GapStatistics,
    awaited: AwaitedSide,
    /// Changes with every event of the source.
    progress: u64,
    /// When the loop had run dry first after the source's last event.
    ran_dry_ns: u64,
    /// The histograms' scale; they begin anew with another one.
    max_ns: u64,
}

impl PollPredictor {
    /// The time until which polling for the source pays; a time that has passed if it does not. Called when the loop has run dry.
    /// `progress` is any number that changes with every event of the source.
    pub fn predict_poll_deadline_ns(
        &mut self,
        settings: &PollSettings,
        now_ns: u64,
        progress: u64,
        awaited: AwaitedSide,
    ) -> u64 {
        if self.max_ns != settings.max_ns {
            *self = PollPredictor {
                max_ns: settings.max_ns,
                ..PollPredictor::default()
            };
        }
        if self.progress != progress || self.ran_dry_ns == 0 {
            (self.progress, self.ran_dry_ns) = (progress, now_ns);
        }
        self.awaited = awaited;
        let window_ns = match awaited {
            AwaitedSide::Guest => self.guest.window_to_poll_ns(),
            AwaitedSide::Disk { in_flight } => {
                let flight_ns = self.disk.mean_ns.saturating_mul(in_flight.into());
                match flight_ns > max_polled_flight_ns(settings) {
                    true => 0,
                    false => self.disk.window_to_poll_ns(),
                }
            }
            AwaitedSide::Library => 0,
        };
        self.ran_dry_ns.saturating_add(window_ns)
    }

    /// Learns from an idle time of the loop, with one iteration since: if the source has made progress, then its gap has
    /// ended.
    pub fn learn_from_idle(&mut self, settings: &PollSettings, idle: IdleEnd, progress: u64) {
        if self.progress == progress || self.ran_dry_ns == 0 || self.max_ns != settings.max_ns {
            return;
        }
        let gap_ns = idle.woke_ns.saturating_sub(self.ran_dry_ns);
        self.awaited_side_gaps()
            .record_poll_outcome(settings, gap_ns, idle.polled);
        self.awaited_side_gaps()
            .add_gap_and_set_window(settings, gap_ns);
        // Until the loop runs dry again there is no gap to learn from.
        self.ran_dry_ns = 0;
    }

    /// Statistics of the gaps of the side that the next event is expected from.
    fn awaited_side_gaps(&mut self) -> &mut GapStatistics {
        match self.awaited {
            AwaitedSide::Guest => &mut self.guest,
            AwaitedSide::Disk { .. } | AwaitedSide::Library => &mut self.disk,
        }
    }
}

#[cfg(test)]
mod tests;
