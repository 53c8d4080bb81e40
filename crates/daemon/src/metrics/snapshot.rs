//! Snapshot of all exports, LUNs, iothreads and nodes for the metrics thread: names, settings, and references to live counters.
//!
//! Nothing here keeps an iothread running or a file open after its object is removed.

use std::sync::Arc;

use block::{ImageStatus, Node, ThrottleLimits, ThrottleStats};
use iothread::{DroppedReports, ExportReporter, IothreadTotals, thread_cpu_time_ns};
use options::Driver;
use telemetry::queue::QueueStats;

use crate::disk::export_stats::ExportStats;
use crate::state::DaemonObjects;
use crate::state::export::Export;
use crate::state::iothread::Iothread;

/// All objects at one moment.
#[derive(Default)]
pub(super) struct MetricsSnapshot {
    pub exports: Vec<ExportSnapshot>,
    pub iothreads: Vec<IothreadSnapshot>,
    pub nodes: Vec<NodeSnapshot>,
    pub dropped_reports: DroppedReports,
}

/// An export.
pub(super) struct ExportSnapshot {
    pub name: String,
    pub node: String,
    pub stats: Arc<ExportStats>,
    /// Counts of parked and late requests; `None` for devices that have no such counts.
    pub reports: Option<Arc<ExportReporter>>,
    pub luns: Vec<LunSnapshot>,
}

/// A LUN.
pub(super) struct LunSnapshot {
    pub target: u16,
    pub lun: u16,
    pub node: String,
    /// Counters by iothread.
    pub stats: Vec<Arc<QueueStats>>,
}

/// An iothread.
pub(super) struct IothreadSnapshot {
    pub name: String,
    pub totals: IothreadTotals,
    pub poll_max_ns: u64,
    pub aio_max_batch: u32,
    thread_id: i32,
}

/// A node.
pub(super) struct NodeSnapshot {
    pub name: String,
    pub size_bytes: u64,
    /// Of a node of driver `rbd`. Its lock is that of the moment.
    pub image: Option<ImageStatus>,
    /// Of a node that throttles.
    pub throttle: Option<ThrottleSnapshot>,
}

/// A node in its throttle group.
pub(super) struct ThrottleSnapshot {
    pub group: String,
    /// The group's.
    pub limits: ThrottleLimits,
    /// The node's.
    pub stats: Arc<ThrottleStats>,
}

impl MetricsSnapshot {
    /// Copies names and settings, and takes references to counters.
    pub fn of_objects(objects: &DaemonObjects) -> Self {
        let export = |export: &Export| ExportSnapshot {
            name: export.options.id.clone(),
            node: export.options.node_name.clone(),
            stats: export.stats.clone(),
            luns: snapshots_of_luns(export),
            reports: export.reports.clone(),
        };
        let iothread = |iothread: &Iothread| IothreadSnapshot {
            name: iothread.options.id.clone(),
            totals: iothread.thread.totals().clone(),
            poll_max_ns: iothread.options.poll_max_ns,
            aio_max_batch: iothread.options.aio_max_batch,
            thread_id: iothread.thread.thread_id(),
        };
        let nodes = objects.nodes.iter().map(|open| NodeSnapshot {
            name: open.node.name().to_owned(),
            size_bytes: open.node.size(),
            image: open
                .node
                .image_status()
                .filter(|_| matches!(open.options.driver, Driver::Rbd(_))),
            throttle: ThrottleSnapshot::of_node(&open.node),
        });
        MetricsSnapshot {
            exports: objects.exports.iter().map(export).collect(),
            iothreads: objects.iothreads.iter().map(iothread).collect(),
            nodes: nodes.collect(),
            dropped_reports: objects.reports.dropped_reports(),
        }
    }
}

/// Snapshots of an export's LUNs, if it has any.
fn snapshots_of_luns(export: &Export) -> Vec<LunSnapshot> {
    let luns = export.options.kind.luns();
    let luns = luns.into_iter().flatten().zip(&export.disks);
    let snapshots = luns.map(|(lun, disk)| LunSnapshot {
        target: lun.target,
        lun: lun.lun,
        node: lun.node_name.clone(),
        stats: disk.stats.clone(),
    });
    snapshots.collect()
}

impl ThrottleSnapshot {
    /// Of a node that throttles. It does not keep the node in the group.
    pub fn of_node(node: &Node) -> Option<Self> {
        let member = node.throttle()?;
        Some(ThrottleSnapshot {
            group: member.group().name().to_owned(),
            limits: member.group().limits(),
            stats: member.stats().clone(),
        })
    }
}

impl IothreadSnapshot {
    /// CPU time of the thread until now.
    pub fn cpu_time_ns(&self) -> u64 {
        thread_cpu_time_ns(self.thread_id)
    }
}
