//! Counters of one worker thread, with one look at the clock per batch.

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::phase::{Phase, Phases};
use crate::client::Kind;

/// Of so many batches one is looked at more closely: how long it took, and how long the thread had
/// nothing to do after it.
const BATCHES_PER_SAMPLE: u32 = 16;

/// What a worker did in the part of a measurement that counts.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Reads and writes that completed.
    pub requests: u64,
    /// How long each took, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// In this time.
    pub elapsed: Duration,
    /// When that began, on the monotonic clock.
    pub since_ns: u64,
    /// In the batches looked at: time with requests, and time without.
    pub busy_ns: u64,
    /// See `busy_ns`.
    pub idle_ns: u64,
    /// All that completed: also before and after the part that counts.
    pub in_all: u64,
    /// How many of these had completed by which time on the monotonic clock, several times from the beginning to the end.
    pub course: Vec<(u64, u64)>,
}

/// An empty histogram, of which recording does not allocate: up to 68 s, longer than a guest waits, with percentiles that are at
/// most one part in a thousand too high.
pub(super) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, (1 << 36) - 1, 3).expect("valid bounds")
}

/// Counts while a worker works. It calls [`Meter::found`], then [`Meter::record`] for each request,
/// then [`Meter::handled`].
pub(super) struct Meter<'p> {
    phases: &'p Phases,
    phase: Phase,
    /// Of this phase. What it has in all and of the course is of all phases.
    tally: Tally,
    result: Option<Tally>,
    mark_interval_ns: u64,
    next_mark_ns: u64,
    until_sample: u32,
    sample: Sample,
}

/// Where the closer look at a batch is.
#[derive(Clone, Copy)]
enum Sample {
    None,
    /// The batch was found at this time.
    Batch(u64),
    /// It was handled at this time.
    Idle(u64),
}

impl<'p> Meter<'p> {
    /// Marks the course this often, if it is said.
    pub fn new(phases: &'p Phases, mark_interval: Option<Duration>) -> Self {
        let interval = mark_interval.map_or(0, |interval| interval.as_nanos());
        Meter {
            phases,
            phase: Phase::WarmUp,
            tally: Tally {
                requests: 0,
                latencies: latencies(),
                elapsed: Duration::ZERO,
                since_ns: 0,
                busy_ns: 0,
                idle_ns: 0,
                in_all: 0,
                course: Vec::new(),
            },
            result: None,
            mark_interval_ns: u64::try_from(interval).unwrap_or(u64::MAX),
            next_mark_ns: u64::MAX,
            until_sample: BATCHES_PER_SAMPLE,
            sample: Sample::None,
        }
    }

    /// The first requests are sent now: the course begins.
    pub fn begin(&mut self) -> u64 {
        let now_ns = now_ns();
        if self.mark_interval_ns > 0 {
            self.mark(now_ns);
        }
        now_ns
    }

    /// Something has completed. The time is that of all requests found, and of those sent in their place.
    #[inline]
    pub fn found(&mut self) -> u64 {
        let now_ns = now_ns();
        if let Sample::Idle(since_ns) = self.sample {
            self.tally.idle_ns += now_ns - since_ns;
            self.sample = Sample::None;
        }
        let phase = self.next_phase();
        if phase != self.phase {
            self.enter(phase, now_ns);
        }
        if now_ns >= self.next_mark_ns {
            self.mark(now_ns);
        }
        self.until_sample -= 1;
        if self.until_sample == 0 {
            self.until_sample = BATCHES_PER_SAMPLE;
            self.sample = Sample::Batch(now_ns);
        }
        now_ns
    }

    /// Nothing has completed for a while: the phase may have changed all the same.
    pub fn idle(&mut self) {
        let phase = self.next_phase();
        if phase != self.phase {
            self.enter(phase, now_ns());
        }
    }

    /// What the conductor says, but the part that counts is not over before something has completed in it: a disk
    /// that stood still has a low rate, not none. (It is not waited for without end: see the driver's limit.)
    #[inline]
    fn next_phase(&self) -> Phase {
        let nothing_counts = self.phase == Phase::Measure && self.tally.latencies.is_empty();
        match self.phases.now() {
            Phase::Stop if self.phase == Phase::WarmUp || nothing_counts => Phase::Measure,
            phase => phase,
        }
    }

    /// One of the requests found, which was sent at `sent_ns`.
    #[inline]
    pub fn record(&mut self, kind: Kind, sent_ns: u64, now_ns: u64) {
        let counts = u64::from(kind != Kind::Flush);
        self.tally.requests += counts;
        self.tally.in_all += counts;
        self.tally.latencies.saturating_record(now_ns - sent_ns);
    }

    /// All that was found is dealt with.
    #[inline]
    pub fn handled(&mut self) {
        if let Sample::Batch(found_ns) = self.sample {
            let now_ns = now_ns();
            self.tally.busy_ns += now_ns - found_ns;
            self.sample = Sample::Idle(now_ns);
        }
    }

    /// Whether requests that have completed are sent again.
    #[inline]
    pub fn again(&self) -> bool {
        self.phase != Phase::Stop
    }

    /// What was counted; of a part that counts that never came there are only `in_all` and the course.
    pub fn finish(self) -> Tally {
        let Tally { in_all, course, .. } = self.tally.clone();
        let result = self.result.unwrap_or(Tally {
            requests: 0,
            ..self.tally
        });
        Tally {
            in_all,
            course,
            ..result
        }
    }

    #[cold]
    fn mark(&mut self, now_ns: u64) {
        self.tally.course.push((now_ns, self.tally.in_all));
        self.next_mark_ns = now_ns.saturating_add(self.mark_interval_ns);
    }

    #[cold]
    fn enter(&mut self, phase: Phase, now_ns: u64) {
        let tally = &mut self.tally;
        if self.phase == Phase::Measure {
            tally.elapsed = Duration::from_nanos(now_ns - tally.since_ns);
            self.result = Some(tally.clone());
        }
        // What completes later belongs to another part.
        (tally.requests, tally.busy_ns, tally.idle_ns) = (0, 0, 0);
        tally.latencies.reset();
        tally.since_ns = now_ns;
        self.sample = Sample::None;
        self.phase = phase;
    }
}

/// The monotonic clock.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Since the machine started: neither is negative.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
