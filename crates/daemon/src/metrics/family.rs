//! Shorthands for writing metric families: a constructor, units, and the check that leaves out unused queues and LUNs.

use telemetry::queue::{QueueStats, RequestKind};

use crate::openmetrics::{MetricFamily, MetricType};

/// A family from its fields in order, so that its definition takes one line.
pub(super) const fn new_family(
    name: &'static str,
    kind: MetricType,
    unit: Option<&'static str>,
    help: &'static str,
) -> MetricFamily {
    MetricFamily {
        name,
        kind,
        unit,
        help,
    }
}

/// Units, as [`new_family`] takes them.
pub(super) const SECONDS: Option<&str> = Some("seconds");
pub(super) const BYTES: Option<&str> = Some("bytes");

/// Whether a queue or LUN runs or has ever been used. Unused ones are left out: they would be most of the text.
pub(super) fn is_or_was_used(stats: &QueueStats) -> bool {
    let had_errors = |kind: &RequestKind| {
        let stats = stats.of_kind(*kind);
        stats.failed.get() + stats.invalid.get() > 0
    };
    stats.queue_size().get() > 0
        || stats.notifications().get() > 0
        || stats.last_success_ticks().get() > 0
        || RequestKind::ALL.iter().any(had_errors)
}
