//! Parts of metric families: names, units, and the queues that are worth a line.

use telemetry::queue::{Kind, QueueStats};

use crate::openmetrics::{Family, Kind as Type};

pub(super) const fn family(
    name: &'static str,
    kind: Type,
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

pub(super) const SECONDS: Option<&str> = Some("seconds");
pub(super) const BYTES: Option<&str> = Some("bytes");

/// It runs, or has ever done something. The others would be most of the text, and say nothing.
pub(super) fn was_used(stats: &QueueStats) -> bool {
    let did = |kind: &Kind| {
        let stats = stats.of(*kind);
        stats.failed.get() + stats.invalid.get() > 0
    };
    stats.size().get() > 0
        || stats.notifications().get() > 0
        || stats.last_ticks().get() > 0
        || Kind::ALL.iter().any(did)
}
