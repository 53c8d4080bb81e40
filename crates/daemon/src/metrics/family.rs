//! Helpers for metric families.

use telemetry::queue::{QueueStats, RequestKind};

use crate::openmetrics::{Family, MetricType};

/// A family in one line.
pub(super) const fn family(
    name: &'static str,
    kind: MetricType,
    unit: Option<&'static str>,
    help: &'static str,
) -> Family {
    Family {
        name,
        kind,
        unit,
        help,
    }
}

/// Units, as [`family`] takes them.
pub(super) const SECONDS: Option<&str> = Some("seconds");
pub(super) const BYTES: Option<&str> = Some("bytes");

/// Whether a queue or LUN runs or has ever been used. Unused ones are left out: they would be most of the text.
pub(super) fn was_used(stats: &QueueStats) -> bool {
    let had_errors = |kind: &RequestKind| {
        let stats = stats.of_kind(*kind);
        stats.failed.get() + stats.invalid.get() > 0
    };
    stats.queue_size().get() > 0
        || stats.notifications().get() > 0
        || stats.last_success_ticks().get() > 0
        || RequestKind::ALL.iter().any(had_errors)
}
