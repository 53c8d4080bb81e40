//! Samples for tests: a daemon with one busy and one idle export.

use std::time::{Duration, Instant};

use crate::operator::histogram::Histogram;
use crate::operator::sample::{
    ExportSample, IothreadSample, QueueSample, RequestCounters, Sample, SampledStatistics,
};

/// A queue three quarters of whose operations are reads.
fn queue(index: u64, operations: u64) -> QueueSample {
    let count = |share: u64| operations * share / 100;
    let (ends, counts) = ([100_000, 200_000], [count(98), count(2)]);
    QueueSample {
        index,
        iothread: format!("io{index}"),
        running: true,
        statistics: SampledStatistics {
            depth: 16,
            turns: operations / 4,
            counters: RequestCounters {
                reads: count(75),
                read_bytes: count(75) * 4096,
                writes: count(25),
                write_bytes: count(25) * 4096,
                ..RequestCounters::default()
            },
            latency: Histogram::from_bucket_ends_and_counts(ends.into_iter(), counts.into_iter()),
        },
    }
}

/// Two samples, two seconds apart: export `busy` with 100,000 and 20,000 operations on its queues, `idle` with none.
pub(crate) fn two_samples() -> [Sample; 2] {
    let first_taken_at = Instant::now();
    [0, 1].map(|index| {
        let count = u64::from(index);
        let export = |id: &str, queues| ExportSample {
            id: id.to_owned(),
            node: "d".to_owned(),
            connected: id == "busy",
            image: None,
            throttles: Vec::new(),
            queues,
            luns: Vec::new(),
        };
        let queues = vec![queue(0, 7_000 + 100_000 * count), queue(1, 20_000 * count)];
        Sample {
            taken_at: first_taken_at + Duration::from_secs(2) * index,
            exports: vec![
                export("idle", vec![QueueSample::default()]),
                export("busy", queues),
            ],
            iothreads: vec![IothreadSample {
                id: "io0".to_owned(),
                cpu_ns: 1_000_000_000 * count,
                sleeps: 10 * count,
                polls: 8 * count,
                poll_hits: 6 * count,
                submitted: 100_000 * count,
                submit_calls: 8_000 * count,
            }],
        }
    })
}
