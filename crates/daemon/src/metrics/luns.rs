//! Writes the metric families of LUNs: requests in flight, operations, bytes, errors and latencies. Those of queues cover the whole
//! controller.

use telemetry::counters::Scale;
use telemetry::queue::{KindStats, QueueStats, RequestKind};

use super::family::{BYTES, SECONDS, is_or_was_used, new_family};
use super::latency_histogram::LatencyHistogram;
use super::snapshot::{LunSnapshot, MetricsSnapshot};
use crate::openmetrics::{MetricType, MetricsTextEncoder};

/// The counters of a LUN, and its labels. Latencies are read once, so that all families agree.
struct LabelledLunCounters<'a> {
    export: &'a str,
    target: String,
    lun: String,
    snapshot: &'a LunSnapshot,
    latencies: [LatencyHistogram; 4],
}

impl LabelledLunCounters<'_> {
    fn labels(&self) -> [(&'static str, &str); 4] {
        [
            ("export", self.export),
            ("target", &self.target),
            ("lun", &self.lun),
            ("node", &self.snapshot.node),
        ]
    }

    fn labels_with_op(&self, kind: RequestKind) -> [(&'static str, &str); 5] {
        let [export, target, lun, node] = self.labels();
        [export, target, lun, node, ("op", kind.name())]
    }

    /// Sum over all iothreads.
    fn sum_over_iothreads(&self, value: impl Fn(&QueueStats) -> u64) -> u64 {
        self.snapshot.stats.iter().map(|stats| value(stats)).sum()
    }

    /// Sum over all iothreads, for one kind of requests.
    fn sum_of_kind_over_iothreads(
        &self,
        kind: RequestKind,
        value: impl Fn(&KindStats) -> u64,
    ) -> u64 {
        self.sum_over_iothreads(|stats| value(stats.of_kind(kind)))
    }
}

/// Writes the families of all LUNs that were ever used.
pub(super) fn write_lun_families(
    snapshot: &MetricsSnapshot,
    scale: Scale,
    out: &mut MetricsTextEncoder,
) {
    let luns = snapshot.exports.iter().flat_map(|export| {
        let used = |lun: &&LunSnapshot| lun.stats.iter().any(|stats| is_or_was_used(stats));
        export
            .luns
            .iter()
            .filter(used)
            .map(|snapshot| LabelledLunCounters {
                export: &export.name,
                target: snapshot.target.to_string(),
                lun: snapshot.lun.to_string(),
                snapshot,
                latencies: RequestKind::ALL.map(|kind| {
                    let stats = snapshot.stats.iter().map(|stats| stats.of_kind(kind));
                    LatencyHistogram::from_counters(stats, scale)
                }),
            })
    });
    let luns: Vec<LabelledLunCounters<'_>> = luns.collect();
    if luns.is_empty() {
        return;
    }
    let luns_and_kinds = || {
        luns.iter()
            .flat_map(|lun| RequestKind::ALL.map(|kind| (lun, kind)))
    };
    out.begin_family(new_family(
        "blockplane_lun_inflight",
        MetricType::Gauge,
        None,
        "Commands in flight that access the disk.",
    ));
    for lun in &luns {
        out.add_integer_sample(
            &lun.labels(),
            lun.sum_over_iothreads(|stats| stats.in_flight().get()),
        );
    }
    out.begin_family(new_family(
        "blockplane_lun_operations",
        MetricType::Counter,
        None,
        "Commands that succeeded, by operation on the disk.",
    ));
    for (lun, kind) in luns_and_kinds() {
        let operations = lun.latencies[kind as usize].operations;
        out.add_integer_sample(&lun.labels_with_op(kind), operations);
    }
    out.begin_family(new_family(
        "blockplane_lun_transferred_bytes",
        MetricType::Counter,
        BYTES,
        "Bytes of commands that succeeded.",
    ));
    for (lun, kind) in luns_and_kinds().filter(|(_, kind)| *kind != RequestKind::Flush) {
        let bytes = lun.sum_of_kind_over_iothreads(kind, |stats| stats.bytes.get());
        out.add_integer_sample(&lun.labels_with_op(kind), bytes);
    }
    out.begin_family(new_family(
        "blockplane_lun_errors",
        MetricType::Counter,
        None,
        "Commands that failed on the disk (kind failed) or were rejected before they reached it (kind invalid).",
    ));
    for (lun, kind) in luns_and_kinds() {
        let [export, target, number, node, op] = lun.labels_with_op(kind);
        let mut add_sample = |name, count| {
            out.add_integer_sample(&[export, target, number, node, op, ("kind", name)], count);
        };
        add_sample(
            "failed",
            lun.sum_of_kind_over_iothreads(kind, |stats| stats.failed.get()),
        );
        add_sample(
            "invalid",
            lun.sum_of_kind_over_iothreads(kind, |stats| stats.invalid.get()),
        );
    }
    out.begin_family(new_family(
        "blockplane_lun_latency_seconds",
        MetricType::Histogram,
        SECONDS,
        "Time from the admission of a command to its completion.",
    ));
    for (lun, kind) in luns_and_kinds() {
        lun.latencies[kind as usize].write_samples_if_used(&lun.labels_with_op(kind), out);
    }
}
