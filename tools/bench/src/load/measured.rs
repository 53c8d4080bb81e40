//! Results of a load.

use hdrhistogram::Histogram;

use super::{Saturated, ServerUsage, Tally, latencies};

/// What came of a load.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Bytes of each request.
    pub block_bytes: u32,
    /// Of each thread.
    pub threads: Vec<Tally>,
    /// What the server used meanwhile; `None` when its process is unknown.
    pub server: Option<ServerUsage>,
}

/// What `verify` has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Writes made.
    pub writes: u64,
    /// Blocks compared while others were written.
    pub checked: u64,
    /// Blocks read back at the end: all that were written.
    pub read_back: u64,
}

impl Measured {
    /// How long the part that counts was.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        // Threads that share a processor learn at different times that it began.
        let longest = self.threads.iter().map(|tally| tally.elapsed).max();
        longest.unwrap_or_default().as_secs_f64()
    }

    /// Requests per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        let seconds = self.seconds();
        if seconds == 0.0 {
            return 0.0;
        }
        self.completed() as f64 / seconds
    }

    /// Millions of bytes per second.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        self.iops() * f64::from(self.block_bytes) / 1e6
    }

    /// Requests completed.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.threads.iter().map(|tally| tally.requests).sum()
    }

    /// How long requests took; `None` if that was not measured.
    #[must_use]
    pub fn latencies(&self) -> Option<Histogram<u64>> {
        let mut all = latencies();
        for tally in &self.threads {
            all += tally.latencies.as_ref()?;
        }
        Some(all)
    }

    /// So many percent of the requests were this fast, in microseconds; 100: all.
    #[must_use]
    pub fn latency_us(&self, percent: f64) -> Option<f64> {
        Some(self.latencies()?.value_at_percentile(percent) as f64 / 1e3)
    }

    /// Share of its time, from 0 to 1, that the client found nothing to do.
    #[must_use]
    pub fn client_idle(&self) -> f64 {
        let sum = |part: fn(&Tally) -> u64| self.threads.iter().map(part).sum::<u64>() as f64;
        let (busy, idle) = (sum(|tally| tally.busy_ns), sum(|tally| tally.idle_ns));
        if busy + idle == 0.0 {
            0.0
        } else {
            idle / (busy + idle)
        }
    }

    /// Processor time of the server per request, in nanoseconds.
    #[must_use]
    pub fn server_cpu_ns(&self) -> Option<f64> {
        let completed = self.completed();
        let server = self.server.as_ref().filter(|_| completed > 0)?;
        Some(server.used.cpu_ns as f64 / completed as f64)
    }

    /// Who could not have done more.
    #[must_use]
    pub fn saturated(&self) -> Saturated {
        Saturated::of(self.client_idle(), self.server.as_ref())
    }
}
