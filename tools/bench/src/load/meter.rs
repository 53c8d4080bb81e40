//! Counters of one worker thread, with at most one look at the clock per batch.

use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::latencies;
use super::phases::{Phase, Phases};
use crate::client::Kind;

/// Of so many batches one is looked at more closely: how long it took, and how long the thread had
/// nothing to do after it.
const BATCHES_PER_SAMPLE: u32 = 16;

/// What a worker did in the part of a measurement that counts.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Reads and writes that completed.
    pub requests: u64,
    /// How long each took, if that was measured.
    pub latencies: Option<Histogram<u64>>,
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
    /// How many of these had completed, several times from the beginning to the end.
    pub course: Vec<Mark>,
}

/// So much was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// By this time on the monotonic clock.
    pub at_ns: u64,
    /// Requests completed.
    pub completed: u64,
}

/// Counts while a worker works. It calls [`Meter::found`], then [`Meter::record`] for each request,
/// then [`Meter::handled`].
pub struct Meter<'p> {
    phases: &'p Phases,
    phase: Phase,
    latency: bool,
    in_flight: bool,
    tally: Tally,
    result: Tally,
    histogram: Histogram<u64>,
    /// Completed before this phase.
    earlier: u64,
    course: Vec<Mark>,
    mark_interval_ns: u64,
    next_mark_ns: u64,
    since_ns: u64,
    /// Something has completed in this phase.
    counted: bool,
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
    /// With or without latencies.
    #[must_use]
    pub fn new(phases: &'p Phases, latency: bool) -> Self {
        Meter {
            phases,
            phase: Phase::WarmUp,
            latency,
            in_flight: false,
            tally: Tally::default(),
            result: Tally::default(),
            histogram: latencies(),
            earlier: 0,
            course: Vec::new(),
            mark_interval_ns: 0,
            next_mark_ns: u64::MAX,
            since_ns: 0,
            counted: false,
            until_sample: BATCHES_PER_SAMPLE,
            sample: Sample::None,
        }
    }

    /// Marks the course this often.
    #[must_use]
    pub fn with_marks(mut self, interval: Option<Duration>) -> Self {
        if let Some(interval) = interval {
            self.mark_interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        }
        self
    }

    /// Measures how long requests take that are in flight at the end, as well. They do not count otherwise.
    #[must_use]
    pub fn with_in_flight(mut self, measured: bool) -> Self {
        self.in_flight = measured;
        self
    }

    /// The first requests are sent now: the course begins.
    #[must_use]
    pub fn begin(&mut self) -> u64 {
        let now_ns = now_ns();
        if self.mark_interval_ns > 0 {
            self.mark(now_ns);
        }
        now_ns
    }

    /// Something has completed. The time is that of all requests found, and of those sent in their
    /// place; 0 if latencies are not measured.
    #[inline]
    pub fn found(&mut self) -> u64 {
        let phase = self.next_phase();
        let sampling = !matches!(self.sample, Sample::None);
        self.until_sample -= 1;
        if !self.latency && !sampling && self.until_sample > 0 && phase == self.phase {
            return 0;
        }
        let now_ns = now_ns();
        if let Sample::Idle(since_ns) = self.sample {
            self.tally.idle_ns += now_ns - since_ns;
            self.sample = Sample::None;
        }
        if phase != self.phase {
            self.enter(phase, now_ns);
        }
        if now_ns >= self.next_mark_ns {
            self.mark(now_ns);
        }
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
        match self.phases.now() {
            Phase::Stop if self.phase == Phase::WarmUp || self.nothing_counts() => Phase::Measure,
            phase => phase,
        }
    }

    fn nothing_counts(&self) -> bool {
        self.phase == Phase::Measure && !self.counted
    }

    /// One of the requests found, which was sent at `sent_ns`.
    #[inline]
    pub fn record(&mut self, kind: Kind, sent_ns: u64, now_ns: u64) {
        self.counted = true;
        self.tally.requests += u64::from(kind != Kind::Flush);
        if self.latency {
            self.histogram.saturating_record(now_ns - sent_ns);
        }
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
    #[must_use]
    pub fn again(&self) -> bool {
        self.phase != Phase::Stop
    }

    /// What was counted; nothing but `in_all` and the course where the part that counts never came.
    #[must_use]
    pub fn finish(mut self) -> Tally {
        // The part that counts is over: these are those that were in flight then.
        if let (true, Some(latencies)) = (self.in_flight, &mut self.result.latencies) {
            *latencies += &self.histogram;
        }
        Tally {
            in_all: self.in_all(),
            course: self.course,
            ..self.result
        }
    }

    fn in_all(&self) -> u64 {
        self.earlier + self.tally.requests
    }

    #[cold]
    fn mark(&mut self, now_ns: u64) {
        self.course.push(Mark {
            at_ns: now_ns,
            completed: self.in_all(),
        });
        self.next_mark_ns = now_ns.saturating_add(self.mark_interval_ns);
    }

    #[cold]
    fn enter(&mut self, phase: Phase, now_ns: u64) {
        self.earlier = self.in_all();
        if self.phase == Phase::Measure {
            self.result = std::mem::take(&mut self.tally);
            self.result.elapsed = Duration::from_nanos(now_ns - self.since_ns);
            self.result.since_ns = self.since_ns;
            self.result.latencies = self.latency.then(|| self.histogram.clone());
        }
        // What completes later belongs to another part.
        self.tally = Tally::default();
        self.histogram.reset();
        self.sample = Sample::None;
        self.since_ns = now_ns;
        self.counted = false;
        self.phase = phase;
    }
}

/// The monotonic clock.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Since the machine started: neither is negative.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
