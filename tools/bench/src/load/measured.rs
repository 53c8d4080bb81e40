//! Results of a load.

use hdrhistogram::Histogram;

use super::Tally;
use super::meter::latencies;

/// A thread that runs for this share of the time or more has no time left.
const BUSY: f64 = 0.95;

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

/// What a server's threads used in the part of a measurement that counts.
#[derive(Clone, Copy, Debug)]
pub struct ServerUsage {
    /// Processor time of all threads together.
    pub cpu_ns: u64,
    /// Share of the time, from 0 to 1, that its busiest thread ran.
    pub busiest: f64,
}

impl Measured {
    /// Requests per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        // Threads that share a processor learn at different times that the part that counts began.
        let longest = self.threads.iter().map(|tally| tally.elapsed).max();
        let seconds = longest.unwrap_or_default().as_secs_f64();
        self.completed() as f64 / seconds.max(f64::MIN_POSITIVE)
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

    /// So many percent of the requests were this fast, in microseconds; 100: all.
    #[must_use]
    pub fn latency_us(&self, percent: f64) -> f64 {
        let mut all: Histogram<u64> = latencies();
        for tally in &self.threads {
            all += &tally.latencies;
        }
        all.value_at_percentile(percent) as f64 / 1e3
    }

    /// Share of its time, from 0 to 1, that the client found nothing to do.
    #[must_use]
    pub fn client_idle(&self) -> f64 {
        let sum = |part: fn(&Tally) -> u64| self.threads.iter().map(part).sum::<u64>() as f64;
        let (busy, idle) = (sum(|tally| tally.busy_ns), sum(|tally| tally.idle_ns));
        idle / (busy + idle).max(1.0)
    }

    /// Processor time of the server per request, in nanoseconds.
    #[must_use]
    pub fn server_cpu_ns(&self) -> Option<f64> {
        let completed = self.completed();
        let server = self.server.filter(|_| completed > 0)?;
        Some(server.cpu_ns as f64 / completed as f64)
    }

    /// The side that could not have done more: the client hardly ever found nothing to do, or a thread of the server ran all the time,
    /// with requests or in search of some; or neither, where both wait for each other, or for the disk.
    #[must_use]
    pub fn saturated(&self) -> &'static str {
        if self.client_idle() <= 1.0 - BUSY {
            "client"
        } else if self.server.is_some_and(|server| server.busiest >= BUSY) {
            "server"
        } else {
            "neither"
        }
    }
}
