//! Load between two samples of the counters: of exports, queues, SCSI units and iothreads, for `blockplane top`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::operator::histogram::Histogram;
use crate::operator::image::Image;
use crate::operator::sample::{
    IothreadSample, LunSample, RequestCounters, Sample, SampledStatistics,
};
use crate::operator::throttle::ThrottleLoad;

/// Load of all exports and iothreads in the time between two samples.
#[derive(Clone, Debug)]
pub struct DaemonLoad {
    pub(crate) elapsed: Duration,
    pub(crate) exports: Vec<ExportLoad>,
    pub(crate) iothreads: Vec<IothreadLoad>,
}

/// Load of an export and of its queues.
#[derive(Clone, Debug)]
pub(crate) struct ExportLoad {
    pub id: String,
    pub node: String,
    pub connected: bool,
    pub image: Option<Image>,
    /// The throttled nodes that its requests pass.
    pub throttles: Vec<ThrottleLoad>,
    pub load: IntervalLoad,
    pub queues: Vec<QueueLoad>,
    pub luns: Vec<LunLoad>,
}

/// Load of a unit of a SCSI controller.
#[derive(Clone, Debug)]
pub(crate) struct LunLoad {
    pub target: u64,
    pub lun: u64,
    pub node: String,
    pub image: Option<Image>,
    pub throttles: Vec<ThrottleLoad>,
    pub load: IntervalLoad,
}

/// Load of a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueLoad {
    pub index: u64,
    pub iothread: String,
    pub running: bool,
    /// Whether a front-end has started it, now or earlier.
    pub was_used: bool,
    pub load: IntervalLoad,
}

/// Counts of the time between two samples: increases of counters, no rates.
#[derive(Clone, Debug, Default)]
pub(crate) struct IntervalLoad {
    pub counters: RequestCounters,
    pub latency: Histogram,
    /// Requests in flight at the second sample.
    pub depth: u64,
    /// Turns of queues that had requests.
    pub turns: u64,
}

/// Load of an iothread.
#[derive(Clone, Debug)]
pub(crate) struct IothreadLoad {
    pub id: String,
    pub cpu_percent: f64,
    pub sleeps: u64,
    pub submitted: u64,
    /// Requests per call; `None` without calls.
    pub mean_batch: Option<f64>,
    /// Percentage of polls that found something.
    pub poll_hits_percent: Option<f64>,
}

impl DaemonLoad {
    /// The difference of two samples. An export or iothread that `earlier` lacks counts from 0.
    #[must_use]
    pub fn between(earlier: &Sample, now: &Sample) -> Self {
        let elapsed = now.taken_at.saturating_duration_since(earlier.taken_at);
        let exports = now.exports.iter().map(|export| {
            let before = earlier.exports.iter().find(|before| before.id == export.id);
            let mut load = IntervalLoad::default();
            let mut queues = Vec::new();
            for queue in &export.queues {
                let before =
                    before.and_then(|before| before.queues.iter().find(|b| b.index == queue.index));
                let queue_load = IntervalLoad::from_counter_increases(
                    before.map(|before| &before.statistics),
                    &queue.statistics,
                );
                load.add(&queue_load);
                queues.push(QueueLoad {
                    index: queue.index,
                    iothread: queue.iothread.clone(),
                    running: queue.running,
                    was_used: queue.running
                        || queue.statistics.counters != RequestCounters::default(),
                    load: queue_load,
                });
            }
            let luns = export.luns.iter().map(|lun| {
                // Another disk at the same address has counters of its own.
                let is_same_disk = |before: &&LunSample| {
                    (before.target, before.lun, &before.node) == (lun.target, lun.lun, &lun.node)
                };
                let before = before.and_then(|before| before.luns.iter().find(is_same_disk));
                LunLoad {
                    target: lun.target,
                    lun: lun.lun,
                    node: lun.node.clone(),
                    image: lun.image.clone(),
                    throttles: ThrottleLoad::between(
                        before.map_or(&[], |before| &before.throttles),
                        &lun.throttles,
                    ),
                    load: IntervalLoad::from_counter_increases(
                        before.map(|before| &before.statistics),
                        &lun.statistics,
                    ),
                }
            });
            ExportLoad {
                id: export.id.clone(),
                node: export.node.clone(),
                connected: export.connected,
                image: export.image.clone(),
                throttles: ThrottleLoad::between(
                    before.map_or(&[], |before| &before.throttles),
                    &export.throttles,
                ),
                load,
                queues,
                luns: luns.collect(),
            }
        });
        let iothreads = now.iothreads.iter().map(|thread| {
            let before = earlier
                .iothreads
                .iter()
                .find(|before| before.id == thread.id);
            IothreadLoad::between(before, thread, elapsed)
        });
        DaemonLoad {
            elapsed,
            exports: exports.collect(),
            iothreads: iothreads.collect(),
        }
    }

    /// A count divided by the time; 0 if that is 0.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    }

    /// The sum over all exports.
    pub(crate) fn total_load(&self) -> IntervalLoad {
        let mut total = IntervalLoad::default();
        for export in &self.exports {
            total.add(&export.load);
        }
        total
    }

    /// All rates as JSON, for scripts. An export may have hundreds of queues; those that no front-end used are omitted.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let exports = self.exports.iter().map(|export| {
            let used = export.queues.iter().filter(|queue| queue.was_used);
            let queues = used.map(|queue| {
                let mut json = json!({"index": queue.index, "iothread": queue.iothread, "running": queue.running});
                self.insert_load_members(&queue.load, &mut json);
                json
            });
            let queues: Vec<Value> = queues.collect();
            let mut json = json!({"export": export.id, "node-name": export.node, "connected": export.connected});
            self.insert_load_members(&export.load, &mut json);
            insert_disk_members(export.image.as_ref(), &export.throttles, &mut json);
            json["queues"] = queues.into();
            if !export.luns.is_empty() {
                json["luns"] = export.luns.iter().map(|lun| self.lun_to_json(lun)).collect();
            }
            json
        });
        let exports: Vec<Value> = exports.collect();
        let iothreads = self.iothreads.iter().map(|thread| {
            json!({
                "id": thread.id,
                "cpu_percent": thread.cpu_percent,
                "sleeps": thread.sleeps,
                "requests_submitted": thread.submitted,
                "mean_batch": thread.mean_batch,
                "poll_hits_percent": thread.poll_hits_percent,
            })
        });
        let iothreads: Vec<Value> = iothreads.collect();
        json!({"seconds": self.elapsed.as_secs_f64(), "exports": exports, "iothreads": iothreads})
    }

    /// The rates of a unit as JSON.
    fn lun_to_json(&self, lun: &LunLoad) -> Value {
        let mut json = json!({"target": lun.target, "lun": lun.lun, "node-name": lun.node});
        insert_disk_members(lun.image.as_ref(), &lun.throttles, &mut json);
        self.insert_load_members(&lun.load, &mut json);
        json
    }

    /// Adds the members that describe a load to an object.
    fn insert_load_members(&self, load: &IntervalLoad, object: &mut Value) {
        let counters = &load.counters;
        for (key, count) in [
            ("reads", counters.reads),
            ("writes", counters.writes),
            ("flushes", counters.flushes),
            ("discards", counters.discards),
            ("failed", counters.failed),
            ("read_bytes", counters.read_bytes),
            ("write_bytes", counters.write_bytes),
            ("depth", load.depth),
        ] {
            object[key] = count.into();
        }
        object["iops"] = self.per_second(load.reads_and_writes()).into();
        object["mb_per_s"] = (self.per_second(load.read_and_written_bytes()) / 1e6).into();
        object["mean_batch"] = load.mean_requests_per_turn().into();
        for (key, percent) in [("latency_p50_us", 50.0), ("latency_p99_us", 99.0)] {
            object[key] = load.latency.percentile(percent).map(|ns| ns / 1e3).into();
        }
    }
}

/// Adds the members that describe an image and throttled nodes to an object.
fn insert_disk_members(image: Option<&Image>, throttles: &[ThrottleLoad], object: &mut Value) {
    if let Some(image) = image {
        object["image"] = image.name.as_str().into();
        object["image_state"] = image.state.as_str().into();
    }
    if !throttles.is_empty() {
        object["throttle"] = throttles.iter().map(ThrottleLoad::to_json).collect();
    }
}

impl IntervalLoad {
    /// The increase of each counter since `before`, if there is one, or since 0, and the present queue depth. No rates:
    /// [`DaemonLoad::per_second`] computes them.
    fn from_counter_increases(before: Option<&SampledStatistics>, now: &SampledStatistics) -> Self {
        let none = SampledStatistics::default();
        let before = before.unwrap_or(&none);
        IntervalLoad {
            counters: now.counters.since(before.counters),
            latency: now.latency.since(&before.latency),
            depth: now.depth,
            turns: now.turns.saturating_sub(before.turns),
        }
    }

    /// Adds the load of another queue or export.
    fn add(&mut self, other: &IntervalLoad) {
        self.counters.add(other.counters);
        self.latency.add(&other.latency);
        self.depth += other.depth;
        self.turns += other.turns;
    }

    /// The number of reads and writes that succeeded.
    pub(crate) fn reads_and_writes(&self) -> u64 {
        self.counters.reads + self.counters.writes
    }

    /// The number of requests of all kinds, including failed ones.
    fn all_requests(&self) -> u64 {
        let counters = &self.counters;
        self.reads_and_writes() + counters.flushes + counters.discards + counters.failed
    }

    /// Requests per turn of a queue; `None` without turns.
    pub(crate) fn mean_requests_per_turn(&self) -> Option<f64> {
        ratio(self.all_requests(), self.turns)
    }

    /// Bytes read and written.
    pub(crate) fn read_and_written_bytes(&self) -> u64 {
        self.counters.read_bytes + self.counters.write_bytes
    }
}

impl RequestCounters {
    /// Combines each counter with the other's.
    fn combine(self, other: RequestCounters, with: fn(u64, u64) -> u64) -> RequestCounters {
        RequestCounters {
            reads: with(self.reads, other.reads),
            read_bytes: with(self.read_bytes, other.read_bytes),
            writes: with(self.writes, other.writes),
            write_bytes: with(self.write_bytes, other.write_bytes),
            flushes: with(self.flushes, other.flushes),
            discards: with(self.discards, other.discards),
            failed: with(self.failed, other.failed),
        }
    }

    /// The increase of each counter. Differences stop at 0: an export that was deleted and created again starts its
    /// counters at 0.
    fn since(self, before: RequestCounters) -> RequestCounters {
        self.combine(before, u64::saturating_sub)
    }

    /// Adds the counts of another queue or export.
    fn add(&mut self, other: RequestCounters) {
        *self = self.combine(other, u64::saturating_add);
    }
}

impl IothreadLoad {
    /// Percentages and means of the increases since `before`, if there is one, or since 0, which took the time `elapsed`.
    fn between(before: Option<&IothreadSample>, now: &IothreadSample, elapsed: Duration) -> Self {
        let increase = |counter: fn(&IothreadSample) -> u64| {
            counter(now).saturating_sub(before.map_or(0, counter))
        };
        let submitted = increase(|thread| thread.submitted);
        let seconds = elapsed.as_secs_f64();
        let cpu_seconds = increase(|thread| thread.cpu_ns) as f64 / 1e9;
        IothreadLoad {
            id: now.id.clone(),
            cpu_percent: if seconds > 0.0 {
                100.0 * cpu_seconds / seconds
            } else {
                0.0
            },
            sleeps: increase(|thread| thread.sleeps),
            submitted,
            mean_batch: ratio(submitted, increase(|thread| thread.submit_calls)),
            poll_hits_percent: ratio(
                increase(|thread| thread.poll_hits),
                increase(|thread| thread.polls),
            )
            .map(|share| 100.0 * share),
        }
    }
}

/// A quotient; `None` for a divisor of 0.
fn ratio(dividend: u64, divisor: u64) -> Option<f64> {
    (divisor > 0).then(|| dividend as f64 / divisor as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::testing::two_samples;

    #[test]
    fn rates_cover_the_time_between_samples() {
        let [before, now] = two_samples();
        let json = DaemonLoad::between(&before, &now).to_json();
        assert_eq!(json["seconds"], 2.0);
        let [idle, busy, thread] = [
            &json["exports"][0],
            &json["exports"][1],
            &json["iothreads"][0],
        ];
        for (object, key, expected) in [
            (busy, "reads", json!(90_000)),
            (busy, "iops", json!(60_000.0)),
            (busy, "mb_per_s", json!(245.76)),
            (&busy["queues"][1], "iops", json!(10_000.0)),
            (&busy["queues"][1], "mean_batch", json!(4.0)),
            (thread, "mean_batch", json!(12.5)),
            (thread, "poll_hits_percent", json!(75.0)),
            (idle, "queues", json!([])),
            (idle, "iops", json!(0.0)),
            (idle, "mean_batch", Value::Null),
            (idle, "latency_p50_us", Value::Null),
        ] {
            assert_eq!(object[key], expected, "{key}");
        }
        let us = |key: &str| busy[key].as_f64().unwrap();
        assert!((95.0..=100.0).contains(&us("latency_p50_us")), "{busy}");
        assert!((191.0..=200.0).contains(&us("latency_p99_us")), "{busy}");
    }

    #[test]
    fn recreated_export_counts_from_0() {
        let [before, now] = two_samples();
        // Samples in reverse order: counters shrink only when their owner was created anew.
        let rates = DaemonLoad::between(&now, &before);
        assert_eq!(rates.total_load().reads_and_writes(), 0);
        assert_eq!(rates.per_second(7), 0.0);
        let new = Sample {
            exports: Vec::new(),
            iothreads: Vec::new(),
            ..before
        };
        let load = DaemonLoad::between(&new, &now).total_load();
        assert_eq!(load.reads_and_writes(), 127_000);
    }
}
