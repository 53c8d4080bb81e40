//! Counters, statistics of queues, and tracepoints: all measurements on the request path.
//!
//! - [`counters`]: numbers and histograms with one writer, and a clock for durations;
//! - [`queue`]: names, statistics and admissions that the queues of all devices share;
//! - [`tracepoints`]: static tracepoints (USDT) for perf and bpftrace.

pub mod counters;
pub mod queue;
pub mod tracepoints;
