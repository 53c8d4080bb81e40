//! Latency trace: the time from the last completion of a batch to the guest's signal.
//!
//! Compiled in with the feature `latency-trace` only; without it [`Trace`] is empty and its methods do
//! nothing. Each completion reads the clock then, which production builds should not pay for. Requests that a device
//! answers without a completion are not counted.

#[cfg(not(feature = "latency-trace"))]
pub(crate) use off::Trace;
#[cfg(feature = "latency-trace")]
pub(crate) use on::Trace;

#[cfg(not(feature = "latency-trace"))]
mod off {
    #[derive(Default)]
    pub(crate) struct Trace {}

    impl Trace {
        pub fn make_room(&mut self, _: usize) {}
        #[inline]
        pub fn completed(&mut self, _: u32) {}
        #[inline]
        pub fn signals(&mut self, _: u32) {}
        pub fn print(&self) {}
    }
}

#[cfg(feature = "latency-trace")]
mod on {
    use std::time::Instant;

    /// Trace of one iothread.
    #[derive(Default)]
    pub(crate) struct Trace {
        /// By place: the last completion that was not signalled yet.
        completed: Vec<Option<Instant>>,
        distances: Distances,
    }

    impl Trace {
        pub fn make_room(&mut self, places: usize) {
            self.completed.resize(places, None);
        }

        pub fn completed(&mut self, place: u32) {
            self.completed[place as usize] = Some(Instant::now());
        }

        /// The guest is about to be signalled.
        pub fn signals(&mut self, place: u32) {
            if let Some(completed) = self.completed[place as usize].take() {
                let ns = completed.elapsed().as_nanos();
                self.distances.add(u64::try_from(ns).unwrap_or(u64::MAX));
            }
        }

        /// Logs the distances since the iothread began.
        pub fn print(&self) {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            tracing::info!(
                iothread = %name.strip_prefix("IO ").unwrap_or(name),
                signals = self.distances.count(),
                p50_ns = self.distances.percentile(50),
                p99_ns = self.distances.percentile(99),
                max_ns = self.distances.max_ns,
                "latency-trace"
            );
        }
    }

    /// Number of counts; the last one also counts all longer times: four seconds and more.
    const POWERS: usize = 32;

    /// A histogram: one count per power of two.
    #[derive(Default)]
    struct Distances {
        counts: [u64; POWERS],
        max_ns: u64,
    }

    impl Distances {
        fn add(&mut self, ns: u64) {
            let power = ns.checked_ilog2().unwrap_or(0) as usize;
            self.counts[power.min(POWERS - 1)] += 1;
            self.max_ns = self.max_ns.max(ns);
        }

        fn count(&self) -> u64 {
            self.counts.iter().sum()
        }

        /// At least so many percent are not above this: the end of a power of two, or the maximum.
        fn percentile(&self, percent: u64) -> u64 {
            let wanted = (self.count() * percent).div_ceil(100);
            let mut seen = 0;
            for (power, count) in self.counts.iter().enumerate() {
                seen += count;
                if seen >= wanted && power < POWERS - 1 {
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
            let mut distances = Distances::default();
            assert_eq!((distances.count(), distances.percentile(50)), (0, 0));
            for _ in 0..98 {
                distances.add(300);
            }
            distances.add(0);
            distances.add(5_000);
            assert_eq!(distances.count(), 100);
            assert_eq!(distances.percentile(1), 1);
            assert_eq!(distances.percentile(50), 511);
            assert_eq!(distances.percentile(99), 511);
            assert_eq!(distances.percentile(100), 5_000);
        }

        #[test]
        fn a_signal_without_a_completion_is_not_counted() {
            let mut trace = Trace::default();
            trace.make_room(2);
            trace.completed(1);
            trace.signals(0);
            assert_eq!(trace.distances.count(), 0);
            trace.signals(1);
            trace.signals(1);
            assert_eq!(trace.distances.count(), 1);
        }
    }
}
