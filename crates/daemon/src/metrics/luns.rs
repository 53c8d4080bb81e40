//! Families of figures of SCSI units: of queues there are those of the whole controller.

use telemetry::counters::Scale;
use telemetry::queue::{Kind, KindStats, QueueStats};

use super::family::{BYTES, SECONDS, family, was_used};
use super::latency::Latency;
use super::seen::{Seen, SeenLun};
use crate::openmetrics::{Kind as Type, Text};

/// A unit's figures, read once.
struct Lun<'a> {
    export: &'a str,
    target: String,
    lun: String,
    seen: &'a SeenLun,
    latencies: [Latency; 4],
}

impl Lun<'_> {
    fn labels(&self) -> [(&'static str, &str); 4] {
        [
            ("export", self.export),
            ("target", &self.target),
            ("lun", &self.lun),
            ("node", &self.seen.node),
        ]
    }

    fn labels_of(&self, kind: Kind) -> [(&'static str, &str); 5] {
        let [export, target, lun, node] = self.labels();
        [export, target, lun, node, ("op", kind.name())]
    }

    /// Of all iothreads together.
    fn sum(&self, value: impl Fn(&QueueStats) -> u64) -> u64 {
        self.seen.stats.iter().map(|stats| value(stats)).sum()
    }

    fn of(&self, kind: Kind, value: impl Fn(&KindStats) -> u64) -> u64 {
        self.sum(|stats| value(stats.of(kind)))
    }
}

/// Those that were ever used.
pub(super) fn write(seen: &Seen, scale: Scale, text: &mut Text) {
    let luns = seen.exports.iter().flat_map(|export| {
        let used = |lun: &&SeenLun| lun.stats.iter().any(|stats| was_used(stats));
        export.luns.iter().filter(used).map(|seen| Lun {
            export: &export.name,
            target: seen.target.to_string(),
            lun: seen.lun.to_string(),
            seen,
            latencies: Kind::ALL.map(|kind| {
                let stats = seen.stats.iter().map(|stats| stats.of(kind));
                Latency::of(stats, scale)
            }),
        })
    });
    let luns: Vec<Lun<'_>> = luns.collect();
    if luns.is_empty() {
        return;
    }
    let each = || {
        luns.iter()
            .flat_map(|lun| Kind::ALL.map(|kind| (lun, kind)))
    };
    text.family(family(
        "blockplane_lun_inflight",
        Type::Gauge,
        None,
        "Commands that wait for the unit's disk.",
    ));
    for lun in &luns {
        text.count(&lun.labels(), lun.sum(|stats| stats.in_flight().get()));
    }
    text.family(family(
        "blockplane_lun_operations",
        Type::Counter,
        None,
        "Commands that succeeded, by what they asked of the disk.",
    ));
    for (lun, kind) in each() {
        let operations = lun.latencies[kind as usize].operations;
        text.count(&lun.labels_of(kind), operations);
    }
    text.family(family(
        "blockplane_lun_transferred_bytes",
        Type::Counter,
        BYTES,
        "Bytes of commands that succeeded.",
    ));
    for (lun, kind) in each().filter(|(_, kind)| *kind != Kind::Flush) {
        let bytes = lun.of(kind, |stats| stats.bytes.get());
        text.count(&lun.labels_of(kind), bytes);
    }
    text.family(family(
        "blockplane_lun_errors",
        Type::Counter,
        None,
        "Commands that the disk failed (kind failed) or that were refused without asking it (kind invalid).",
    ));
    for (lun, kind) in each() {
        let [export, target, number, node, op] = lun.labels_of(kind);
        let mut count = |name, count| {
            text.count(&[export, target, number, node, op, ("kind", name)], count);
        };
        count("failed", lun.of(kind, |stats| stats.failed.get()));
        count("invalid", lun.of(kind, |stats| stats.invalid.get()));
    }
    text.family(family(
        "blockplane_lun_latency_seconds",
        Type::Histogram,
        SECONDS,
        "From when a command was taken to its answer.",
    ));
    for (lun, kind) in each() {
        lun.latencies[kind as usize].write(&lun.labels_of(kind), text);
    }
}
