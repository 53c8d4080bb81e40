//! Counters, statistics of queues, and tracepoints: everything that is measured on the way of a request.
//!
//! - [`counters`]: numbers and histograms with one writer, and a clock for durations;
//! - [`queue`]: names, statistics and admissions that the queues of all devices share;
//! - [`tracepoints`]: static tracepoints (USDT) for perf and bpftrace.

pub mod counters;
pub mod queue;
pub mod tracepoints;
