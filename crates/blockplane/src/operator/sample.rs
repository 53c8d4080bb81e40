//! One look at everything that a daemon counts.

use std::time::Instant;

use serde_json::{Map, Value};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::histogram::Histogram;

/// The counters, and when they were read.
#[derive(Clone, Debug)]
pub struct Sample {
    pub(crate) at: Instant,
    pub(crate) exports: Vec<Export>,
    pub(crate) iothreads: Vec<Iothread>,
}

/// An export.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub id: String,
    pub node: String,
    pub connected: bool,
    pub queues: Vec<Queue>,
    /// Of a SCSI controller.
    pub luns: Vec<Lun>,
}

/// A unit of a SCSI controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lun {
    pub target: u64,
    pub lun: u64,
    pub node: String,
    /// As of a queue; units have no turns.
    pub figures: Figures,
}

/// A queue of an export.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub index: u64,
    pub iothread: String,
    pub running: bool,
    pub figures: Figures,
}

/// What a queue or unit counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Requests in flight.
    pub depth: u64,
    /// How often it had its turn, with requests waiting.
    pub turns: u64,
    pub counters: Counters,
    /// Of reads and writes.
    pub latency: Histogram,
}

/// What was done, and succeeded.
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

/// An iothread.
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
    /// Asks a monitor.
    ///
    /// # Errors
    /// [`Error::NoFigures`] from one that does not count; what [`Client::execute`] says.
    pub fn take(client: &mut Client) -> Result<Self> {
        let mut ask = |command| match client.execute(command, Map::new()) {
            Err(Error::Refused { class, .. }) if class == "CommandNotFound" => {
                Err(Error::NoFigures(command))
            }
            answer => answer,
        };
        let iothreads = ask("query-iothreads")?;
        let sent = Instant::now();
        let exports = ask("query-blockstats")?;
        // The counters were read somewhere in between: most likely in the middle.
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
        figures: figures(entry),
    }
}

fn lun(entry: &Value) -> Lun {
    Lun {
        target: count(&entry["target"]),
        lun: count(&entry["lun"]),
        node: text(&entry["node-name"]),
        figures: figures(entry),
    }
}

fn figures(entry: &Value) -> Figures {
    let stats = &entry["stats"];
    let mut latency = Histogram::default();
    for kind in ["read", "write"] {
        let of = &entry["latency"][kind];
        let [ends, counts] = ["bounds", "counts"].map(|key| list(&of[key]).iter().map(count));
        latency.add(&Histogram::of(ends, counts));
    }
    let failed = ["rd", "wr", "flush", "unmap"]
        .map(|kind| count(&stats[format!("failed_{kind}_operations")]));
    Figures {
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
