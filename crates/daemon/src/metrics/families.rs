//! Families of figures by name. docs/metrics.md has the same list for who reads them.

use std::sync::atomic::Ordering;

use iothread::WaitingRequests;
use telemetry::counters::Scale;
use telemetry::queue::{Kind, QueueStats};

use super::family::{BYTES, SECONDS, family, was_used};
use super::latency::{Latency, seconds};
use super::luns;
use super::seen::{Seen, SeenIothread};
use crate::openmetrics::{Family, Format, Kind as Type, Labels, Text};

/// A queue's figures, read once: what is said twice is the same.
struct Queue<'a> {
    export: &'a str,
    index: String,
    iothread: &'a str,
    stats: &'a QueueStats,
    latencies: [Latency; 4],
}

impl Queue<'_> {
    fn labels(&self) -> [(&'static str, &str); 2] {
        [("export", self.export), ("queue", &self.index)]
    }

    fn labels_of(&self, kind: Kind) -> [(&'static str, &str); 3] {
        let [export, queue] = self.labels();
        [export, queue, ("op", kind.name())]
    }
}

/// All families.
pub(super) fn write(seen: &Seen, format: Format) -> String {
    let mut text = Text::new(format);
    text.family(family("blockplane_build", Type::Info, None, "The program."));
    text.count(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.family(family(
        "blockplane_reports_lost",
        Type::Counter,
        None,
        "Reports of what went wrong for which there was no room on their way to monitors.",
    ));
    text.count(&[], seen.lost.count());
    exports(seen, &mut text);
    let scale = Scale::new();
    let queues: Vec<Queue<'_>> = seen
        .exports
        .iter()
        .flat_map(|export| {
            let queues = export.figures.queues.iter().enumerate();
            let used = queues.filter(|(_, queue)| was_used(&queue.stats));
            used.map(move |(index, queue)| Queue {
                export: &export.name,
                index: index.to_string(),
                iothread: &queue.iothread,
                stats: &queue.stats,
                latencies: Kind::ALL
                    .map(|kind| Latency::of([queue.stats.of(kind)].into_iter(), scale)),
            })
        })
        .collect();
    queue_states(&queues, &mut text);
    requests(&queues, &mut text);
    luns::write(seen, scale, &mut text);
    iothreads(&seen.iothreads, &mut text);
    text.family(family(
        "blockplane_node_size_bytes",
        Type::Gauge,
        BYTES,
        "Size of a disk or a part of one.",
    ));
    for node in &seen.nodes {
        text.count(&[("node", &node.name)], node.bytes);
    }
    text.done()
}

/// Of exports that know of requests that wait or are late.
fn of_waiting(
    seen: &Seen,
    text: &mut Text,
    family: Family,
    figure: impl Fn(&WaitingRequests) -> u64,
) {
    text.family(family);
    for export in &seen.exports {
        if let Some(reports) = &export.reports {
            text.count(&[("export", &export.name)], figure(reports.waiting()));
        }
    }
}

fn exports(seen: &Seen, text: &mut Text) {
    text.family(family(
        "blockplane_export",
        Type::Info,
        None,
        "An export, with the node that it shows.",
    ));
    for export in &seen.exports {
        text.count(&[("export", &export.name), ("node", &export.node)], 1);
    }
    text.family(family(
        "blockplane_export_connected",
        Type::Gauge,
        None,
        "Whether a front-end is connected.",
    ));
    for export in &seen.exports {
        let connected = export.figures.connected.load(Ordering::Relaxed);
        text.count(&[("export", &export.name)], connected.into());
    }
    let waiting = family(
        "blockplane_export_requests_waiting",
        Type::Gauge,
        None,
        "Requests that the disk has failed, and that wait.",
    );
    of_waiting(seen, text, waiting, WaitingRequests::count);
    let late = family(
        "blockplane_export_requests_late",
        Type::Counter,
        None,
        "Requests that took longer than they may.",
    );
    of_waiting(seen, text, late, WaitingRequests::late);
    text.family(family(
        "blockplane_export_queues",
        Type::Gauge,
        None,
        "Queues that a front-end may ask for.",
    ));
    for export in &seen.exports {
        text.count(
            &[("export", &export.name)],
            export.figures.queues.len() as u64,
        );
    }
}

fn queue_states(queues: &[Queue<'_>], text: &mut Text) {
    text.family(family(
        "blockplane_queue",
        Type::Info,
        None,
        "A queue, with the iothread that runs it.",
    ));
    for queue in queues {
        let [export, index] = queue.labels();
        text.count(&[export, index, ("iothread", queue.iothread)], 1);
    }
    let mut all = |name, kind, help, value: fn(&QueueStats) -> u64| {
        text.family(family(name, kind, None, help));
        for queue in queues {
            text.count(&queue.labels(), value(queue.stats));
        }
    };
    all(
        "blockplane_queue_running",
        Type::Gauge,
        "Whether the queue is started.",
        |stats| u64::from(stats.size().get() > 0),
    );
    all(
        "blockplane_queue_entries",
        Type::Gauge,
        "Entries of its ring; 0 when it is not started.",
        |stats| stats.size().get(),
    );
    all(
        "blockplane_queue_inflight",
        Type::Gauge,
        "Requests in flight.",
        |stats| stats.in_flight().get(),
    );
    all(
        "blockplane_queue_turns",
        Type::Counter,
        "How often its iothread came to it and found requests waiting.",
        |stats| stats.turns().get(),
    );
    all(
        "blockplane_queue_notifications",
        Type::Counter,
        "Signals to the guest.",
        |stats| stats.notifications().get(),
    );
}

fn requests(queues: &[Queue<'_>], text: &mut Text) {
    let each = || {
        queues
            .iter()
            .flat_map(|queue| Kind::ALL.map(|kind| (queue, kind)))
    };
    text.family(family(
        "blockplane_queue_operations",
        Type::Counter,
        None,
        "Requests that succeeded.",
    ));
    for (queue, kind) in each() {
        text.count(
            &queue.labels_of(kind),
            queue.latencies[kind as usize].operations,
        );
    }
    text.family(family(
        "blockplane_queue_transferred_bytes",
        Type::Counter,
        BYTES,
        "Bytes of requests that succeeded.",
    ));
    for (queue, kind) in each().filter(|(_, kind)| *kind != Kind::Flush) {
        text.count(&queue.labels_of(kind), queue.stats.of(kind).bytes.get());
    }
    text.family(family(
        "blockplane_queue_merged",
        Type::Counter,
        None,
        "Requests that went to the disk together with another.",
    ));
    for (queue, kind) in each().filter(|(_, kind)| *kind != Kind::Flush) {
        text.count(&queue.labels_of(kind), queue.stats.of(kind).merged.get());
    }
    text.family(family(
        "blockplane_queue_errors",
        Type::Counter,
        None,
        "Requests that the disk failed (kind failed) or that were refused without asking it (kind invalid).",
    ));
    for (queue, kind) in each() {
        let [export, index, op] = queue.labels_of(kind);
        let stats = queue.stats.of(kind);
        text.count(&[export, index, op, ("kind", "failed")], stats.failed.get());
        text.count(
            &[export, index, op, ("kind", "invalid")],
            stats.invalid.get(),
        );
    }
    text.family(family(
        "blockplane_queue_latency_seconds",
        Type::Histogram,
        SECONDS,
        "From when a request was taken off the ring to its answer.",
    ));
    for (queue, kind) in each() {
        queue.latencies[kind as usize].write(&queue.labels_of(kind), text);
    }
}

fn iothreads(iothreads: &[SeenIothread], text: &mut Text) {
    fn labels(iothread: &SeenIothread) -> [(&'static str, &str); 1] {
        [("iothread", &iothread.name)]
    }
    let mut times = |name, kind, help, ns: fn(&SeenIothread) -> u64| {
        text.family(family(name, kind, SECONDS, help));
        for iothread in iothreads {
            text.number(&labels(iothread), seconds(ns(iothread)));
        }
    };
    times(
        "blockplane_iothread_cpu_seconds",
        Type::Counter,
        "CPU time of the thread.",
        |iothread| iothread.cpu_time_ns(),
    );
    times(
        "blockplane_iothread_poll_seconds",
        Type::Counter,
        "Time that it polled.",
        |iothread| iothread.totals.iterations.poll_time_ns(),
    );
    times(
        "blockplane_iothread_poll_max_seconds",
        Type::Gauge,
        "Longest polling before it blocks (poll-max-ns).",
        |iothread| iothread.poll_max_ns,
    );
    let mut counts = |name, kind, help, value: fn(&SeenIothread) -> u64| {
        text.family(family(name, kind, None, help));
        for iothread in iothreads {
            let labels: Labels<'_> = &labels(iothread);
            text.count(labels, value(iothread));
        }
    };
    counts(
        "blockplane_iothread_iterations",
        Type::Counter,
        "How often it went around.",
        |iothread| iothread.totals.iterations.iterations(),
    );
    counts(
        "blockplane_iothread_sleeps",
        Type::Counter,
        "How often it blocked.",
        |iothread| iothread.totals.iterations.sleeps(),
    );
    counts(
        "blockplane_iothread_polls",
        Type::Counter,
        "How often it polled before it blocked.",
        |iothread| iothread.totals.iterations.polls(),
    );
    counts(
        "blockplane_iothread_poll_hits",
        Type::Counter,
        "How often polling found work.",
        |iothread| iothread.totals.iterations.poll_hits(),
    );
    counts(
        "blockplane_iothread_submitted",
        Type::Counter,
        "Requests handed to the kernel.",
        |iothread| iothread.totals.submits.requests.get(),
    );
    counts(
        "blockplane_iothread_submit_calls",
        Type::Counter,
        "Calls that handed them over.",
        |iothread| iothread.totals.submits.calls.get(),
    );
    counts(
        "blockplane_iothread_largest_batch",
        Type::Gauge,
        "Most requests in one of these calls.",
        |iothread| iothread.totals.submits.largest_batch.get(),
    );
    counts(
        "blockplane_iothread_aio_max_batch",
        Type::Gauge,
        "Limit on requests in such a call (aio-max-batch); 0: automatic.",
        |iothread| iothread.aio_max_batch.into(),
    );
}
