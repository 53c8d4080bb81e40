//! A sample of all counters of a daemon: exports, queues, SCSI units and iothreads, read over QMP for `blockplane top`.

use std::time::Instant;

use serde_json::{Map, Value};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::histogram::Histogram;
use crate::operator::image::Image;
use crate::operator::throttle::ThrottleSample;

/// All counters, and the time when they were read.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the counters were read.
    pub(crate) taken_at: Instant,
    pub(crate) exports: Vec<ExportSample>,
    pub(crate) iothreads: Vec<IothreadSample>,
}

/// Counters of an export.
#[derive(Clone, Debug)]
pub(crate) struct ExportSample {
    pub id: String,
    pub node: String,
    pub connected: bool,
    /// The image of a Ceph cluster that the node is.
    pub image: Option<Image>,
    /// The throttled nodes that its requests pass.
    pub throttles: Vec<ThrottleSample>,
    pub queues: Vec<QueueSample>,
    /// Units of a SCSI controller.
    pub luns: Vec<LunSample>,
}

/// Counters of a unit of a SCSI controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct LunSample {
    pub target: u64,
    pub lun: u64,
    pub node: String,
    pub image: Option<Image>,
    pub throttles: Vec<ThrottleSample>,
    /// The same statistics as of a queue, except that units have no turns.
    pub statistics: SampledStatistics,
}

/// Counters of a queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSample {
    pub index: u64,
    pub iothread: String,
    pub running: bool,
    pub statistics: SampledStatistics,
}

/// Statistics of a queue or unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampledStatistics {
    /// Requests in flight.
    pub depth: u64,
    /// Turns of the queue that had requests.
    pub turns: u64,
    pub counters: RequestCounters,
    /// Latency of reads and writes.
    pub latency: Histogram,
}

/// Counts of requests and bytes; of successful requests, except `failed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub failed: u64,
}

/// Counters of an iothread.
#[derive(Clone, Debug)]
pub(crate) struct IothreadSample {
    pub id: String,
    pub cpu_ns: u64,
    pub sleeps: u64,
    pub polls: u64,
    pub poll_hits: u64,
    pub submitted: u64,
    pub submit_calls: u64,
}

impl Sample {
    /// Takes a sample: queries a monitor for all counters.
    ///
    /// # Errors
    /// [`Error::NoStatistics`] from a monitor without these commands; errors of [`Client::execute`].
    pub fn take(client: &mut Client) -> Result<Self> {
        let mut query = |command| match client.execute(command, Map::new()) {
            Err(Error::Command { class, .. }) if class == "CommandNotFound" => {
                Err(Error::NoStatistics(command))
            }
            reply => reply,
        };
        let iothreads = query("query-iothreads")?;
        let sent_at = Instant::now();
        let exports = query("query-blockstats")?;
        // The daemon read the counters somewhere in between; the middle is the best estimate.
        let taken_at = sent_at + sent_at.elapsed() / 2;
        Ok(Sample {
            taken_at,
            exports: array_or_empty(&exports).iter().map(parse_export).collect(),
            iothreads: array_or_empty(&iothreads)
                .iter()
                .map(read_iothread)
                .collect(),
        })
    }
}

/// The items of a list; none if it is missing.
fn array_or_empty(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A number; 0 if it is missing.
fn number_or_zero(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// A string; empty if it is missing.
fn string_or_empty(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Reads an export's `BlockStats`.
fn parse_export(entry: &Value) -> ExportSample {
    ExportSample {
        id: string_or_empty(&entry["export"]),
        node: string_or_empty(&entry["node-name"]),
        connected: entry["connected"] == true,
        image: Image::read(&entry["rbd"]),
        throttles: array_or_empty(&entry["throttle"])
            .iter()
            .map(parse_throttle)
            .collect(),
        queues: array_or_empty(&entry["queues"])
            .iter()
            .map(parse_queue)
            .collect(),
        luns: array_or_empty(&entry["luns"])
            .iter()
            .map(parse_lun)
            .collect(),
    }
}

/// Reads a queue's `BlockQueueStats`.
fn parse_queue(entry: &Value) -> QueueSample {
    QueueSample {
        index: number_or_zero(&entry["index"]),
        iothread: string_or_empty(&entry["iothread"]),
        running: entry["running"] == true,
        statistics: read_statistics(entry),
    }
}

/// Reads a unit's `BlockLunStats`.
fn parse_lun(entry: &Value) -> LunSample {
    LunSample {
        target: number_or_zero(&entry["target"]),
        lun: number_or_zero(&entry["lun"]),
        node: string_or_empty(&entry["node-name"]),
        image: Image::read(&entry["rbd"]),
        throttles: array_or_empty(&entry["throttle"])
            .iter()
            .map(parse_throttle)
            .collect(),
        statistics: read_statistics(entry),
    }
}

/// Reads a throttled node's `BlockThrottleStats`.
fn parse_throttle(entry: &Value) -> ThrottleSample {
    let hits = entry["limit-hits"].as_object().into_iter().flatten();
    ThrottleSample {
        node: string_or_empty(&entry["node-name"]),
        group: string_or_empty(&entry["group"]),
        waiting: number_or_zero(&entry["waiting"]),
        waits: read_histogram(&entry["waits"]),
        limit_hits: hits
            .map(|(limit, hits)| (limit.clone(), number_or_zero(hits)))
            .collect(),
    }
}

/// Reads a `BlockLatency`.
fn read_histogram(latency: &Value) -> Histogram {
    let [ends, counts] =
        ["bounds", "counts"].map(|key| array_or_empty(&latency[key]).iter().map(number_or_zero));
    Histogram::from_bucket_ends_and_counts(ends, counts)
}

/// Reads the statistics that entries of queues and of units have in common.
fn read_statistics(entry: &Value) -> SampledStatistics {
    let stats = &entry["stats"];
    let mut latency = Histogram::default();
    for kind in ["read", "write"] {
        latency.add(&read_histogram(&entry["latency"][kind]));
    }
    let failed = ["rd", "wr", "flush", "unmap"]
        .map(|kind| number_or_zero(&stats[format!("failed_{kind}_operations")]));
    SampledStatistics {
        depth: number_or_zero(&entry["depth"]),
        turns: number_or_zero(&entry["turns"]),
        counters: RequestCounters {
            reads: number_or_zero(&stats["rd_operations"]),
            read_bytes: number_or_zero(&stats["rd_bytes"]),
            writes: number_or_zero(&stats["wr_operations"]),
            write_bytes: number_or_zero(&stats["wr_bytes"]),
            flushes: number_or_zero(&stats["flush_operations"]),
            discards: number_or_zero(&stats["unmap_operations"]),
            failed: failed.iter().sum(),
        },
        latency,
    }
}

/// Reads an iothread's `IOThreadInfo`.
fn read_iothread(entry: &Value) -> IothreadSample {
    let counter = |key: &str| number_or_zero(&entry["stats"][key]);
    IothreadSample {
        id: string_or_empty(&entry["id"]),
        cpu_ns: counter("cpu-time-ns"),
        sleeps: counter("sleeps"),
        polls: counter("polls"),
        poll_hits: counter("poll-hits"),
        submitted: counter("requests-submitted"),
        submit_calls: counter("submit-calls"),
    }
}
