//! Latency trace: the time from the last completion of a batch to the guest's signal.
//!
//! Compiled in with the feature `latency-trace` only; without it [`CompletionToSignalTrace`] is empty and its methods do
//! nothing. Each completion reads the clock then, which production builds should not pay for. Requests that a device
//! answers without a completion are not counted.

#[cfg(not(feature = "latency-trace"))]
pub(crate) use off::CompletionToSignalTrace;
#[cfg(feature = "latency-trace")]
pub(crate) use on::CompletionToSignalTrace;

#[cfg(not(feature = "latency-trace"))]
mod off {
    #[derive(Default)]
    pub(crate) struct CompletionToSignalTrace {}

    impl CompletionToSignalTrace {
        pub fn reserve_sources(&mut self, _: usize) {}
        #[inline]
        pub fn record_completion(&mut self, _: u32) {}
        #[inline]
        pub fn record_latency_at_signal(&mut self, _: u32) {}
        pub fn log_percentiles(&self) {}
    }
}

#[cfg(feature = "latency-trace")]
mod on {
    use std::time::Instant;

    /// CompletionToSignalTrace of one iothread.
    #[derive(Default)]
    pub(crate) struct CompletionToSignalTrace {
        /// By source: the time of the last completion that was not signalled yet.
        last_completions: Vec<Option<Instant>>,
        latencies: LatencyHistogram,
    }

    impl CompletionToSignalTrace {
        /// Makes room for the sources with indices below `source_count`.
        pub fn reserve_sources(&mut self, source_count: usize) {
            self.last_completions.resize(source_count, None);
        }

        /// Notes the time of a completion.
        pub fn record_completion(&mut self, source_index: u32) {
            self.last_completions[source_index as usize] = Some(Instant::now());
        }

        /// Adds the time since the last completion, if there was one: the guest is about to be signalled.
        pub fn record_latency_at_signal(&mut self, source_index: u32) {
            if let Some(completed) = self.last_completions[source_index as usize].take() {
                let ns = completed.elapsed().as_nanos();
                self.latencies.add(u64::try_from(ns).unwrap_or(u64::MAX));
            }
        }

        /// Logs percentiles of the latencies since the iothread began.
        pub fn log_percentiles(&self) {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            tracing::info!(
                iothread = %name.strip_prefix("IO ").unwrap_or(name),
                signals = self.latencies.total_count(),
                p50_ns = self.latencies.percentile(50),
                p99_ns = self.latencies.percentile(99),
                max_ns = self.latencies.max_ns,
                "latency-trace"
            );
        }
    }

    /// Number of counts; the last one also counts all longer times: four seconds and more.
    const BUCKETS: usize = 32;

    /// Histogram of the times from completion to signal: one count per power of two.
    #[derive(Default)]
    struct LatencyHistogram {
        counts: [u64; BUCKETS],
        max_ns: u64,
    }

    impl LatencyHistogram {
        fn add(&mut self, ns: u64) {
            let power = ns.checked_ilog2().unwrap_or(0) as usize;
            self.counts[power.min(BUCKETS - 1)] += 1;
            self.max_ns = self.max_ns.max(ns);
        }

        fn total_count(&self) -> u64 {
            self.counts.iter().sum()
        }

        /// At least so many percent are not above this: the end of a power of two, or the maximum.
        fn percentile(&self, percent: u64) -> u64 {
            let wanted = (self.total_count() * percent).div_ceil(100);
            let mut seen = 0;
            for (power, count) in self.counts.iter().enumerate() {
                seen += count;
                if seen >= wanted && power < BUCKETS - 1 {
                    return (u64::MAX >> (63 - power)).min(self.max_ns);
                }
            }
            self.max_ns
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn percentiles_are_ends_of_powers_of_two() {
            let mut latencies = LatencyHistogram::default();
            assert_eq!((latencies.total_count(), latencies.percentile(50)), (0, 0));
            for _ in 0..98 {
                latencies.add(300);
            }
            latencies.add(0);
            latencies.add(5_000);
            assert_eq!(latencies.total_count(), 100);
            assert_eq!(latencies.percentile(1), 1);
            assert_eq!(latencies.percentile(50), 511);
            assert_eq!(latencies.percentile(99), 511);
            assert_eq!(latencies.percentile(100), 5_000);
        }

        #[test]
        fn a_signal_without_a_completion_is_not_counted() {
            let mut trace = CompletionToSignalTrace::default();
            trace.reserve_sources(2);
            trace.record_completion(1);
            trace.record_latency_at_signal(0);
            assert_eq!(trace.latencies.total_count(), 0);
            trace.record_latency_at_signal(1);
            trace.record_latency_at_signal(1);
            assert_eq!(trace.latencies.total_count(), 1);
        }
    }
}
