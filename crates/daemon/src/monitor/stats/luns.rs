//! Statistics in `query-blockstats` of the LUNs of a SCSI controller, and the counters that concern a node.

use qmp::{Member, ObjectType, Type};
use serde_json::{Value, json};
use telemetry::counters::Scale;
use telemetry::queue::QueueStats;

use super::totals::{QueueTotals, latencies_to_json};
use super::{DiskMembers, add_disk_members};
use crate::state::export::Export;

/// `BlockLunStats` of all LUNs; `None` for an export that has none.
pub(super) fn stats_of_luns(
    export: &Export,
    disks: &DiskMembers<'_>,
    scale: Scale,
) -> Option<Vec<Value>> {
    let luns = export.options.kind.luns()?;
    let luns = luns.iter().zip(&export.disks).map(|(lun, disk)| {
        let stats = || disk.stats.iter().map(|stats| &**stats);
        let depth: u64 = stats().map(|stats| stats.in_flight().get()).sum();
        let mut entry = json!({
            "target": lun.target,
            "lun": lun.lun,
            "node-name": lun.node_name,
            "depth": depth,
            "stats": QueueTotals::sum_queues(stats()).to_json(scale),
            "latency": latencies_to_json(stats(), scale),
        });
        add_disk_members(disks, &lun.node_name, &mut entry);
        entry
    });
    Some(luns.collect())
}

/// The type `BlockLunStats`.
pub(super) fn lun_stats_type() -> ObjectType {
    ObjectType::with_members(vec![
        Member::required("target", Type::Int),
        Member::required("lun", Type::Int),
        Member::required("node-name", Type::Str),
        Member::required("depth", Type::Int),
        Member::required("stats", Type::Named("BlockDeviceStats")),
        Member::required("latency", Type::Named("BlockLatencies")),
        Member::optional("rbd", Type::Named("BlockImageInfo")),
        Member::optional("throttle", Type::list_of_named("BlockThrottleStats")),
    ])
}

/// Counters of an export's requests to a node: of all its queues, or of those LUNs that show the node.
pub(super) fn export_stats_of_node<'a>(export: &'a Export, node: &str) -> Vec<&'a QueueStats> {
    match export.options.kind.luns() {
        None if export.options.exports_node(node) => {
            let queues = export.stats.queues.iter();
            queues.map(|queue| &*queue.stats).collect()
        }
        None => Vec::new(),
        Some(_) => {
            let disks = export.disks.iter().filter(|disk| disk.node_name == node);
            let stats = disks.flat_map(|disk| &disk.stats);
            stats.map(|stats| &**stats).collect()
        }
    }
}
