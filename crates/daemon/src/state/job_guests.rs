//! The guests of the disks that jobs copy: a job's copier gives way to the requests of their queues.

use std::sync::Arc;

use block::Node;
use telemetry::queue::QueueStats;

use super::DaemonObjects;

impl DaemonObjects {
    /// The statistics of all queues whose requests reach a node.
    pub fn queues_of_node(&self, node: &Node) -> Vec<Arc<QueueStats>> {
        let queues = self.exports.iter().flat_map(|export| {
            let disks = export.disks.iter();
            let disks = disks.filter(|disk| disk.node.get().leads_through(node));
            disks.flat_map(|disk| match disk.scsi_unit() {
                Some(_) => disk.stats.clone(),
                None => {
                    let queues = export.stats.queues.iter();
                    queues.map(|queue| queue.stats.clone()).collect()
                }
            })
        });
        queues.collect()
    }

    /// Tells the copiers of jobs which queues use their disks now.
    pub fn update_guests_of_jobs(&self) {
        for job in &self.jobs {
            if let Some(disks) = &job.disks {
                job.control.guests.set(self.queues_of_node(&disks.source));
            }
        }
    }
}
