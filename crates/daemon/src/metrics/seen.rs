//! Sources of the metrics: names, settings and counters.
//!
//! Nothing here keeps an iothread or a file open: what is removed ends when it is removed.

use std::sync::Arc;

use iothread::{DroppedReports, ExportReports, IothreadTotals, thread_cpu_time_ns};
use telemetry::queue::QueueStats;

use crate::disk::export_stats::ExportStats;
use crate::state::export::Export;
use crate::state::iothread::Iothread;
use crate::state::objects::Objects;

/// All of it, as of some moment.
#[derive(Default)]
pub(super) struct Seen {
    pub exports: Vec<SeenExport>,
    pub iothreads: Vec<SeenIothread>,
    pub nodes: Vec<SeenNode>,
    pub lost: DroppedReports,
}

pub(super) struct SeenExport {
    pub name: String,
    pub node: String,
    pub figures: Arc<ExportStats>,
    /// What becomes of requests that fail, where there is a choice.
    pub reports: Option<Arc<ExportReports>>,
    pub luns: Vec<SeenLun>,
}

/// A SCSI unit.
pub(super) struct SeenLun {
    pub target: u16,
    pub lun: u16,
    pub node: String,
    /// By iothread.
    pub stats: Vec<Arc<QueueStats>>,
}

pub(super) struct SeenIothread {
    pub name: String,
    pub totals: IothreadTotals,
    pub poll_max_ns: u64,
    pub aio_max_batch: u32,
    thread_id: i32,
}

pub(super) struct SeenNode {
    pub name: String,
    pub bytes: u64,
}

impl Seen {
    pub fn of(objects: &Objects) -> Self {
        let export = |export: &Export| SeenExport {
            name: export.options.id.clone(),
            node: export.options.node_name.clone(),
            figures: export.stats.clone(),
            luns: luns(export),
            reports: export.reports.clone(),
        };
        let iothread = |iothread: &Iothread| SeenIothread {
            name: iothread.options.id.clone(),
            totals: iothread.thread.totals().clone(),
            poll_max_ns: iothread.options.poll_max_ns,
            aio_max_batch: iothread.options.aio_max_batch,
            thread_id: iothread.thread.thread_id(),
        };
        let nodes = objects.nodes.iter().map(|open| SeenNode {
            name: open.node.name().to_owned(),
            bytes: open.node.size(),
        });
        Seen {
            exports: objects.exports.iter().map(export).collect(),
            iothreads: objects.iothreads.iter().map(iothread).collect(),
            nodes: nodes.collect(),
            lost: objects.reports.lost(),
        }
    }
}

fn luns(export: &Export) -> Vec<SeenLun> {
    let luns = export.options.kind.luns();
    let luns = luns.into_iter().flatten().zip(&export.disks);
    let seen = luns.map(|(lun, disk)| SeenLun {
        target: lun.target,
        lun: lun.lun,
        node: lun.node_name.clone(),
        stats: disk.stats.clone(),
    });
    seen.collect()
}

impl SeenIothread {
    pub fn cpu_time_ns(&self) -> u64 {
        thread_cpu_time_ns(self.thread_id)
    }
}
