//! A sample of all counters of a daemon.

use std::time::Instant;

use serde_json::{Map, Value};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::histogram::Histogram;

/// All counters, and the time when they were read.
#[derive(Clone, Debug)]
pub struct Sample {
    pub(crate) at: Instant,
    pub(crate) exports: Vec<Export>,
    pub(crate) iothreads: Vec<Iothread>,
}

/// Counters of an export.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub id: String,
    pub node: String,
    pub connected: bool,
    pub queues: Vec<Queue>,
    /// Units of a SCSI controller.
    pub luns: Vec<Lun>,
}

/// Counters of a unit of a SCSI controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lun {
    pub target: u64,
    pub lun: u64,
    pub node: String,
    /// The same statistics as of a queue, except that units have no turns.
    pub statistics: Statistics,
}

/// Counters of a queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub index: u64,
    pub iothread: String,
    pub running: bool,
    pub statistics: Statistics,
}

/// Statistics of a queue or unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statistics {
    /// Requests in flight.
    pub depth: u64,
    /// Turns of the queue that had requests.
    pub turns: u64,
    pub counters: Counters,
    /// Latency of reads and writes.
    pub latency: Histogram,
}

/// Counts of requests and bytes; of successful requests, except `failed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
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
pub(crate) struct Iothread {
    pub id: String,
    pub cpu_ns: u64,
    pub sleeps: u64,
    pub polls: u64,
    pub poll_hits: u64,
    pub submitted: u64,
    pub submit_calls: u64,
}

impl Sample {
    /// Queries a monitor.
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
        let sent = Instant::now();
        let exports = query("query-blockstats")?;
        // The daemon read the counters somewhere in between; the middle is the best estimate.
        let at = sent + sent.elapsed() / 2;
        Ok(Sample {
            at,
            exports: list(&exports).iter().map(export).collect(),
            iothreads: list(&iothreads).iter().map(iothread).collect(),
        })
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn export(entry: &Value) -> Export {
    Export {
        id: text(&entry["export"]),
        node: text(&entry["node-name"]),
        connected: entry["connected"] == true,
        queues: list(&entry["queues"]).iter().map(queue).collect(),
        luns: list(&entry["luns"]).iter().map(lun).collect(),
    }
}

fn queue(entry: &Value) -> Queue {
    Queue {
        index: count(&entry["index"]),
        iothread: text(&entry["iothread"]),
        running: entry["running"] == true,
        statistics: statistics(entry),
    }
}

fn lun(entry: &Value) -> Lun {
    Lun {
        target: count(&entry["target"]),
        lun: count(&entry["lun"]),
        node: text(&entry["node-name"]),
        statistics: statistics(entry),
    }
}

fn statistics(entry: &Value) -> Statistics {
    let stats = &entry["stats"];
    let mut latency = Histogram::default();
    for kind in ["read", "write"] {
        let of = &entry["latency"][kind];
        let [ends, counts] = ["bounds", "counts"].map(|key| list(&of[key]).iter().map(count));
        latency.add(&Histogram::new(ends, counts));
    }
    let failed = ["rd", "wr", "flush", "unmap"]
        .map(|kind| count(&stats[format!("failed_{kind}_operations")]));
    Statistics {
        depth: count(&entry["depth"]),
        turns: count(&entry["turns"]),
        counters: Counters {
            reads: count(&stats["rd_operations"]),
            read_bytes: count(&stats["rd_bytes"]),
            writes: count(&stats["wr_operations"]),
            write_bytes: count(&stats["wr_bytes"]),
            flushes: count(&stats["flush_operations"]),
            discards: count(&stats["unmap_operations"]),
            failed: failed.iter().sum(),
        },
        latency,
    }
}

fn iothread(entry: &Value) -> Iothread {
    let of = |key: &str| count(&entry["stats"][key]);
    Iothread {
        id: text(&entry["id"]),
        cpu_ns: of("cpu-time-ns"),
        sleeps: of("sleeps"),
        polls: of("polls"),
        poll_hits: of("poll-hits"),
        submitted: of("requests-submitted"),
        submit_calls: of("submit-calls"),
    }
}
