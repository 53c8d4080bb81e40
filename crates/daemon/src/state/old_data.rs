//! Targets of jobs with `sync=none`, which keep the old data of a disk: a snapshot is read from there, so that no client may write there.

use block::Node;

use super::DaemonObjects;
use super::job::Job;
use crate::error::BoxError;

impl DaemonObjects {
    /// Refuses a node for clients that write if a job keeps old data there.
    pub fn check_keeps_no_old_data(&self, node: &Node) -> Result<(), BoxError> {
        let keeping = self.jobs.iter().find(|job| {
            let mut targets = job.disks.iter().map(|disks| &disks.target);
            keeps_old_data(job) && targets.any(|target| target.is_on_same_path_as(node))
        });
        match keeping {
            None => Ok(()),
            Some(job) => Err(format!(
                "Node '{}' is busy: job '{}' keeps old data there, which nothing else may change; export it without writable=on",
                node.name(),
                job.id
            )
            .into()),
        }
    }

    /// Refuses a target for old data to which clients of an export may write.
    pub fn check_not_written_by_clients(&self, target: &Node) -> Result<(), BoxError> {
        let writing = self.exports.iter().find(|export| {
            let disks = export.disks.iter();
            let mut written = disks.filter(|disk| export.options.writes_node(&disk.node_name));
            written.any(|disk| disk.node.get().is_on_same_path_as(target))
        });
        match writing {
            None => Ok(()),
            Some(export) => Err(format!(
                "Node '{}' is busy: clients of export '{}' may write there, and old data must not change; remove the export first",
                target.name(),
                export.options.id
            )
            .into()),
        }
    }
}

fn keeps_old_data(job: &Job) -> bool {
    job.work.copy().is_some_and(|copy| copy.is_of_changes())
}
