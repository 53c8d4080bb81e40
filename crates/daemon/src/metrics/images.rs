//! Writes the metric families of images of Ceph clusters, and of the connections to the clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::ImageStatus;
use ceph::{ConnectionState, ConnectionStatus};
use telemetry::counters::Scale;
use telemetry::queue::{QueueStats, RequestKind};

use super::family::{SECONDS, new_family};
use super::latency_histogram::LatencyHistogram;
use super::snapshot::MetricsSnapshot;
use crate::openmetrics::{MetricType, MetricsTextEncoder};

/// An image by its node, with the statistics of its queues.
struct LabelledImage<'a> {
    node: &'a str,
    status: &'a ImageStatus,
    queues: Vec<QueueStats>,
}

impl LabelledImage<'_> {
    /// Sum over all queues.
    fn sum(&self, value: impl Fn(&QueueStats) -> u64) -> u64 {
        self.queues.iter().map(value).sum()
    }
}

/// Writes all families, unless no node is an image.
pub(super) fn write_image_families(
    snapshot: &MetricsSnapshot,
    scale: Scale,
    out: &mut MetricsTextEncoder,
) {
    let nodes = snapshot.nodes.iter();
    let images = nodes.filter_map(|node| {
        let status = node.image.as_ref()?;
        Some(LabelledImage {
            node: &node.name,
            status,
            queues: status.requests.queues(),
        })
    });
    let images: Vec<LabelledImage<'_>> = images.collect();
    if !images.is_empty() {
        write_families_of_images(&images, scale, out);
        write_families_of_connections(&images, out);
    }
}

fn write_families_of_images(
    images: &[LabelledImage<'_>],
    scale: Scale,
    out: &mut MetricsTextEncoder,
) {
    let images_and_kinds = || {
        images
            .iter()
            .flat_map(|image| RequestKind::ALL.map(|kind| (image, kind)))
    };
    out.begin_family(new_family(
        "blockplane_image",
        MetricType::Info,
        None,
        "An image of a Ceph cluster, its node and its connection.",
    ));
    for image in images {
        let (of, connection) = (&image.status.image, &image.status.connection);
        out.add_integer_sample(
            &[
                ("node", image.node),
                ("cluster", connection.fsid()),
                ("pool", &of.pool),
                ("namespace", of.namespace.as_deref().unwrap_or_default()),
                ("image", &of.image),
                ("snapshot", of.snapshot.as_deref().unwrap_or_default()),
                ("connection", &connection.number().to_string()),
            ],
            1,
        );
    }
    out.begin_family(new_family(
        "blockplane_image_inflight",
        MetricType::Gauge,
        None,
        "Requests in flight at librbd.",
    ));
    for image in images {
        let in_flight = image.sum(|queue| queue.in_flight().get());
        out.add_integer_sample(&[("node", image.node)], in_flight);
    }
    out.begin_family(new_family(
        "blockplane_image_errors",
        MetricType::Counter,
        None,
        "Requests that librbd failed.",
    ));
    for (image, kind) in images_and_kinds() {
        let failed = image.sum(|queue| queue.of_kind(kind).failed.get());
        out.add_integer_sample(&[("node", image.node), ("op", kind.name())], failed);
    }
    out.begin_family(new_family(
        "blockplane_image_latency_seconds",
        MetricType::Histogram,
        SECONDS,
        "Time from the call of librbd to its callback.",
    ));
    for (image, kind) in images_and_kinds() {
        let stats = image.queues.iter().map(|queue| queue.of_kind(kind));
        let labels = [("node", image.node), ("op", kind.name())];
        LatencyHistogram::from_counters(stats, scale).write_samples_if_used(&labels, out);
    }
}

fn write_families_of_connections(images: &[LabelledImage<'_>], out: &mut MetricsTextEncoder) {
    let connections = images.iter().map(|image| &image.status.connection);
    let connections: BTreeMap<u64, &Arc<ConnectionStatus>> = connections
        .map(|connection| (connection.number(), connection))
        .collect();
    let labelled = || {
        let connections = connections.iter();
        connections.map(|(number, connection)| (number.to_string(), *connection))
    };
    out.begin_family(new_family(
        "blockplane_ceph_connection",
        MetricType::Info,
        None,
        "A connection to a Ceph cluster.",
    ));
    for (number, connection) in labelled() {
        out.add_integer_sample(
            &[
                ("connection", &number),
                ("cluster", connection.fsid()),
                ("user", connection.user()),
            ],
            1,
        );
    }
    out.begin_family(new_family(
        "blockplane_ceph_connection_state",
        MetricType::Gauge,
        None,
        "Whether the connection is in the state.",
    ));
    for (number, connection) in labelled() {
        let current = connection.state().name();
        for name in ConnectionState::NAMES {
            let labels = [("connection", number.as_str()), ("state", name)];
            out.add_integer_sample(&labels, u64::from(name == current));
        }
    }
    out.begin_family(new_family(
        "blockplane_ceph_connection_images",
        MetricType::Gauge,
        None,
        "Open images.",
    ));
    for (number, connection) in labelled() {
        out.add_integer_sample(&[("connection", &number)], connection.images() as u64);
    }
    out.begin_family(new_family(
        "blockplane_ceph_connection_inflight",
        MetricType::Gauge,
        None,
        "Requests of all its images in flight.",
    ));
    for (number, connection) in labelled() {
        out.add_integer_sample(&[("connection", &number)], connection.in_flight());
    }
}
