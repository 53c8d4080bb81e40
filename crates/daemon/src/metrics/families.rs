//! Writes all metric families of a snapshot as text: of exports, queues, iothreads and nodes here, of LUNs by [`luns`],
//! of images by [`images`], of throttled nodes by [`throttles`].
//! docs/metrics.md has the same list for users.

use std::sync::atomic::Ordering;

use iothread::ExportQueues;
use telemetry::counters::Scale;
use telemetry::queue::{QueueStats, RequestKind};

use super::family::{BYTES, SECONDS, is_or_was_used, new_family};
use super::latency_histogram::{LatencyHistogram, ns_to_seconds};
use super::snapshot::{IothreadSnapshot, MetricsSnapshot};
use super::{images, luns, throttles};
use crate::openmetrics::{Labels, MetricFamily, MetricType, MetricsTextEncoder, MetricsTextFormat};

/// The counters of a queue, and its labels. Latencies are read once, so that all families agree.
struct LabelledQueueCounters<'a> {
    export: &'a str,
    index: String,
    iothread: &'a str,
    stats: &'a QueueStats,
    latencies: [LatencyHistogram; 4],
}

impl LabelledQueueCounters<'_> {
    fn labels(&self) -> [(&'static str, &str); 2] {
        [("export", self.export), ("queue", &self.index)]
    }

    fn labels_with_op(&self, kind: RequestKind) -> [(&'static str, &str); 3] {
        let [export, queue] = self.labels();
        [export, queue, ("op", kind.name())]
    }
}

/// The text of all families.
pub(super) fn encode_all_families(snapshot: &MetricsSnapshot, format: MetricsTextFormat) -> String {
    let mut out = MetricsTextEncoder::new(format);
    out.begin_family(new_family(
        "blockplane_build",
        MetricType::Info,
        None,
        "The program.",
    ));
    out.add_integer_sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.begin_family(new_family(
        "blockplane_reports_lost",
        MetricType::Counter,
        None,
        "Error reports that were dropped because the queue of reports to monitors was full.",
    ));
    out.add_integer_sample(&[], snapshot.dropped_reports.count());
    write_export_families(snapshot, &mut out);
    let scale = Scale::measure();
    let queues: Vec<LabelledQueueCounters<'_>> = snapshot
        .exports
        .iter()
        .flat_map(|export| {
            let queues = export.stats.queues.iter().enumerate();
            let used = queues.filter(|(_, queue)| is_or_was_used(&queue.stats));
            used.map(move |(index, queue)| LabelledQueueCounters {
                export: &export.name,
                index: index.to_string(),
                iothread: &queue.iothread,
                stats: &queue.stats,
                latencies: RequestKind::ALL.map(|kind| {
                    LatencyHistogram::from_counters([queue.stats.of_kind(kind)].into_iter(), scale)
                }),
            })
        })
        .collect();
    write_queue_state_families(&queues, &mut out);
    write_queue_request_families(&queues, &mut out);
    luns::write_lun_families(snapshot, scale, &mut out);
    write_iothread_families(&snapshot.iothreads, &mut out);
    out.begin_family(new_family(
        "blockplane_node_size_bytes",
        MetricType::Gauge,
        BYTES,
        "Size of a disk or a part of one.",
    ));
    for node in &snapshot.nodes {
        out.add_integer_sample(&[("node", &node.name)], node.size_bytes);
    }
    images::write_image_families(snapshot, scale, &mut out);
    throttles::write_throttle_families(snapshot, &mut out);
    out.finish()
}

/// Writes a family about parked or late requests, for the exports that count them.
fn write_parked_or_late_requests_family(
    snapshot: &MetricsSnapshot,
    out: &mut MetricsTextEncoder,
    family: MetricFamily,
    value: impl Fn(&ExportQueues) -> u64,
) {
    out.begin_family(family);
    for export in &snapshot.exports {
        if let Some(reports) = &export.reports {
            out.add_integer_sample(&[("export", &export.name)], value(reports.queues()));
        }
    }
}

/// Writes the families about exports.
fn write_export_families(snapshot: &MetricsSnapshot, out: &mut MetricsTextEncoder) {
    out.begin_family(new_family(
        "blockplane_export",
        MetricType::Info,
        None,
        "An export and its node.",
    ));
    for export in &snapshot.exports {
        out.add_integer_sample(&[("export", &export.name), ("node", &export.node)], 1);
    }
    out.begin_family(new_family(
        "blockplane_export_connected",
        MetricType::Gauge,
        None,
        "Whether a front-end is connected.",
    ));
    for export in &snapshot.exports {
        let connected = export.stats.connected.load(Ordering::Relaxed);
        out.add_integer_sample(&[("export", &export.name)], connected.into());
    }
    let waiting = new_family(
        "blockplane_export_requests_waiting",
        MetricType::Gauge,
        None,
        "Requests that failed and are parked until they are resumed.",
    );
    write_parked_or_late_requests_family(snapshot, out, waiting, ExportQueues::parked_count);
    let late = new_family(
        "blockplane_export_requests_late",
        MetricType::Counter,
        None,
        "Requests that took longer than request-timeout.",
    );
    write_parked_or_late_requests_family(snapshot, out, late, ExportQueues::late_total);
    out.begin_family(new_family(
        "blockplane_export_queues",
        MetricType::Gauge,
        None,
        "Number of queues that a front-end can use.",
    ));
    for export in &snapshot.exports {
        out.add_integer_sample(
            &[("export", &export.name)],
            export.stats.queues.len() as u64,
        );
    }
}

/// Writes the families about the state and activity of queues.
fn write_queue_state_families(queues: &[LabelledQueueCounters<'_>], out: &mut MetricsTextEncoder) {
    out.begin_family(new_family(
        "blockplane_queue",
        MetricType::Info,
        None,
        "A queue and the iothread that runs it.",
    ));
    for queue in queues {
        let [export, index] = queue.labels();
        out.add_integer_sample(&[export, index, ("iothread", queue.iothread)], 1);
    }
    let mut write_family = |name, kind, help, value: fn(&QueueStats) -> u64| {
        out.begin_family(new_family(name, kind, None, help));
        for queue in queues {
            out.add_integer_sample(&queue.labels(), value(queue.stats));
        }
    };
    write_family(
        "blockplane_queue_running",
        MetricType::Gauge,
        "Whether the queue is started.",
        |stats| u64::from(stats.queue_size().get() > 0),
    );
    write_family(
        "blockplane_queue_entries",
        MetricType::Gauge,
        "Entries of its ring; 0 when it is not started.",
        |stats| stats.queue_size().get(),
    );
    write_family(
        "blockplane_queue_inflight",
        MetricType::Gauge,
        "Requests in flight.",
        |stats| stats.in_flight().get(),
    );
    write_family(
        "blockplane_queue_turns",
        MetricType::Counter,
        "Turns of its iothread in which the queue had new requests.",
        |stats| stats.turns().get(),
    );
    write_family(
        "blockplane_queue_notifications",
        MetricType::Counter,
        "Signals to the guest.",
        |stats| stats.notifications().get(),
    );
}

/// Writes the families about the requests of queues, with a label for the kind of requests.
fn write_queue_request_families(
    queues: &[LabelledQueueCounters<'_>],
    out: &mut MetricsTextEncoder,
) {
    let queues_and_kinds = || {
        queues
            .iter()
            .flat_map(|queue| RequestKind::ALL.map(|kind| (queue, kind)))
    };
    out.begin_family(new_family(
        "blockplane_queue_operations",
        MetricType::Counter,
        None,
        "Requests that succeeded.",
    ));
    for (queue, kind) in queues_and_kinds() {
        out.add_integer_sample(
            &queue.labels_with_op(kind),
            queue.latencies[kind as usize].operations,
        );
    }
    out.begin_family(new_family(
        "blockplane_queue_transferred_bytes",
        MetricType::Counter,
        BYTES,
        "Bytes of requests that succeeded.",
    ));
    for (queue, kind) in queues_and_kinds().filter(|(_, kind)| *kind != RequestKind::Flush) {
        out.add_integer_sample(
            &queue.labels_with_op(kind),
            queue.stats.of_kind(kind).bytes.get(),
        );
    }
    out.begin_family(new_family(
        "blockplane_queue_merged",
        MetricType::Counter,
        None,
        "Requests that were merged with others before they were submitted.",
    ));
    for (queue, kind) in queues_and_kinds().filter(|(_, kind)| *kind != RequestKind::Flush) {
        out.add_integer_sample(
            &queue.labels_with_op(kind),
            queue.stats.of_kind(kind).merged.get(),
        );
    }
    out.begin_family(new_family(
        "blockplane_queue_errors",
        MetricType::Counter,
        None,
        "Requests that failed on the disk (kind failed) or were rejected before they reached it (kind invalid).",
    ));
    for (queue, kind) in queues_and_kinds() {
        let [export, index, op] = queue.labels_with_op(kind);
        let stats = queue.stats.of_kind(kind);
        out.add_integer_sample(&[export, index, op, ("kind", "failed")], stats.failed.get());
        out.add_integer_sample(
            &[export, index, op, ("kind", "invalid")],
            stats.invalid.get(),
        );
    }
    out.begin_family(new_family(
        "blockplane_queue_latency_seconds",
        MetricType::Histogram,
        SECONDS,
        "Time from the admission of a request to its completion.",
    ));
    for (queue, kind) in queues_and_kinds() {
        queue.latencies[kind as usize].write_samples_if_used(&queue.labels_with_op(kind), out);
    }
}

/// Writes the families about iothreads.
fn write_iothread_families(iothreads: &[IothreadSnapshot], out: &mut MetricsTextEncoder) {
    fn labels(iothread: &IothreadSnapshot) -> [(&'static str, &str); 1] {
        [("iothread", &iothread.name)]
    }
    let mut write_seconds = |name, kind, help, ns: fn(&IothreadSnapshot) -> u64| {
        out.begin_family(new_family(name, kind, SECONDS, help));
        for iothread in iothreads {
            out.add_float_sample(&labels(iothread), ns_to_seconds(ns(iothread)));
        }
    };
    write_seconds(
        "blockplane_iothread_cpu_seconds",
        MetricType::Counter,
        "CPU time of the thread.",
        |iothread| iothread.cpu_time_ns(),
    );
    write_seconds(
        "blockplane_iothread_poll_seconds",
        MetricType::Counter,
        "Time that it polled.",
        |iothread| iothread.totals.event_loop.poll_time_ns(),
    );
    write_seconds(
        "blockplane_iothread_poll_max_seconds",
        MetricType::Gauge,
        "Longest polling before it blocks (poll-max-ns).",
        |iothread| iothread.poll_max_ns,
    );
    let mut write_integers = |name, kind, help, value: fn(&IothreadSnapshot) -> u64| {
        out.begin_family(new_family(name, kind, None, help));
        for iothread in iothreads {
            let labels: Labels<'_> = &labels(iothread);
            out.add_integer_sample(labels, value(iothread));
        }
    };
    write_integers(
        "blockplane_iothread_iterations",
        MetricType::Counter,
        "Iterations of its event loop.",
        |iothread| iothread.totals.event_loop.iterations(),
    );
    write_integers(
        "blockplane_iothread_sleeps",
        MetricType::Counter,
        "Times that it blocked.",
        |iothread| iothread.totals.event_loop.sleeps(),
    );
    write_integers(
        "blockplane_iothread_polls",
        MetricType::Counter,
        "Times that it polled before it blocked.",
        |iothread| iothread.totals.event_loop.polls(),
    );
    write_integers(
        "blockplane_iothread_poll_hits",
        MetricType::Counter,
        "Times that polling found work.",
        |iothread| iothread.totals.event_loop.poll_hits(),
    );
    write_integers(
        "blockplane_iothread_submitted",
        MetricType::Counter,
        "Requests submitted to the kernel.",
        |iothread| iothread.totals.submits.requests.get(),
    );
    write_integers(
        "blockplane_iothread_submit_calls",
        MetricType::Counter,
        "System calls that submitted them.",
        |iothread| iothread.totals.submits.calls.get(),
    );
    write_integers(
        "blockplane_iothread_largest_batch",
        MetricType::Gauge,
        "Largest number of requests in one of these calls.",
        |iothread| iothread.totals.submits.largest_batch.get(),
    );
    write_integers(
        "blockplane_iothread_aio_max_batch",
        MetricType::Gauge,
        "Limit on requests in one of these calls (aio-max-batch); 0: automatic.",
        |iothread| iothread.aio_max_batch.into(),
    );
}
