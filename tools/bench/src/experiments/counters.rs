//! Counters of a server's iothread, from its log at the end.

use serde_json::{Value, json};

/// Counts of the whole life of a server, warm-up included. What it did not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Requests that Linux AIO accepted.
    pub submitted: Option<u64>,
    /// Calls of io_submit(2).
    pub submit_calls: Option<u64>,
    /// Requests in the largest of them.
    pub largest_batch: Option<u64>,
    /// The batch limit at the end.
    pub max_batch: Option<u64>,
    /// Calls of io_getevents(2).
    pub getevents_calls: Option<u64>,
    /// Handlers looked at by a loop that scans.
    pub handlers_scanned: Option<u64>,
    /// From the last completion of a batch to the guest's signal, if it was built to trace that.
    pub signal_p50_ns: Option<u64>,
    /// The same, the slowest in a hundred.
    pub signal_p99_ns: Option<u64>,
}

impl Counters {
    /// Looks for `name=value` in a log; the last of each counts.
    pub fn of_log(log: &str) -> Self {
        let find = |name: &str| {
            let mut values = log.split_ascii_whitespace().filter_map(|word| {
                let (key, value) = word.split_once('=')?;
                (key == name).then(|| value.parse().ok())?
            });
            values.next_back()
        };
        let traced = |name| log.contains("latency-trace").then(|| find(name))?;
        Counters {
            submitted: find("submitted"),
            submit_calls: find("submit_calls"),
            largest_batch: find("largest_batch"),
            max_batch: find("max_batch"),
            getevents_calls: find("getevents_calls"),
            handlers_scanned: find("handlers_scanned"),
            signal_p50_ns: traced("p50_ns"),
            signal_p99_ns: traced("p99_ns"),
        }
    }

    /// System calls of Linux AIO per request: submitting and reaping.
    pub fn calls_per_request(&self) -> Option<f64> {
        let calls = self.submit_calls? + self.getevents_calls?;
        let submitted = self.submitted.filter(|submitted| *submitted > 0)?;
        Some(calls as f64 / submitted as f64)
    }

    pub fn json(&self) -> Value {
        json!({
            "submitted": self.submitted,
            "submit_calls": self.submit_calls,
            "largest_batch": self.largest_batch,
            "max_batch": self.max_batch,
            "getevents_calls": self.getevents_calls,
            "calls_per_request": self.calls_per_request(),
            "handlers_scanned": self.handlers_scanned,
            "signal_p50_ns": self.signal_p50_ns,
            "signal_p99_ns": self.signal_p99_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_parsed_by_name() {
        let log = "2026-01-01T00:00:00Z DEBUG submitted=1 submit_calls=1\n\
            2026-01-01T00:00:01Z DEBUG Linux AIO in all submitted=100 submit_calls=10 \
            largest_batch=32 getevents_calls=15\n\
            INFO latency-trace iothread=io signals=7 p50_ns=250 p99_ns=900 max_ns=1000\n";
        let counters = Counters::of_log(log);
        assert_eq!(counters.submitted, Some(100));
        assert_eq!(counters.largest_batch, Some(32));
        assert_eq!(counters.calls_per_request(), Some(0.25));
        assert_eq!(counters.signal_p50_ns, Some(250));
        assert_eq!(counters.handlers_scanned, None);
        assert_eq!(Counters::of_log("nothing"), Counters::default());
    }
}
