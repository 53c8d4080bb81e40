//! Samples for tests: a daemon with one busy and one idle export.

use std::time::{Duration, Instant};

use crate::operator::histogram::Histogram;
use crate::operator::sample::{
    ExportSample, IothreadSample, QueueSample, RequestCounters, Sample, SampledStatistics,
};

fn queue(index: u64, operations: u64) -> QueueSample {
    QueueSample {
        index,
        iothread: format!("io{index}"),
        running: true,
        statistics: statistics(operations),
    }
}

/// Statistics in which three quarters of the operations are reads.
pub(crate) fn statistics(operations: u64) -> SampledStatistics {
    let count = |share: u64| operations * share / 100;
    SampledStatistics {
        depth: 16,
        turns: operations / 4,
        counters: RequestCounters {
            reads: count(75),
            read_bytes: count(75) * 4096,
            writes: count(25),
            write_bytes: count(25) * 4096,
            ..RequestCounters::default()
        },
        latency: Histogram::from_bucket_ends_and_counts(
            [100_000, 200_000].into_iter(),
            [count(98), count(2)].into_iter(),
        ),
    }
}

/// Two samples, two seconds apart: export `busy` with 100,000 and 20,000 operations on its queues, `idle` with none.
pub(crate) fn two_samples() -> [Sample; 2] {
    let first_taken_at = Instant::now();
    [0, 1].map(|index| {
        let export = |id: &str, queues| ExportSample {
            id: id.to_owned(),
            node: "d".to_owned(),
            connected: id == "busy",
            image: None,
            throttles: Vec::new(),
            queues,
            luns: Vec::new(),
        };
        Sample {
            taken_at: first_taken_at + Duration::from_secs(2) * index,
            exports: vec![
                export("idle", vec![QueueSample::default()]),
                export(
                    "busy",
                    vec![
                        queue(0, 7_000 + 100_000 * u64::from(index)),
                        queue(1, 20_000 * u64::from(index)),
                    ],
                ),
            ],
            iothreads: vec![IothreadSample {
                id: "io0".to_owned(),
                cpu_ns: 1_000_000_000 * u64::from(index),
                sleeps: 10 * u64::from(index),
                polls: 8 * u64::from(index),
                poll_hits: 6 * u64::from(index),
                submitted: 100_000 * u64::from(index),
                submit_calls: 8_000 * u64::from(index),
            }],
        }
    })
}
