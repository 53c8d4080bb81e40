//! A transaction: changes of bitmaps and backups of any number of disks, at one moment; all of them or none.
//!
//! Backups begin without stopping a queue:
//! 1. All routes to their disks get the filter *copy before write*, which lets writes pass as long as the moment has not come, and
//!    routes of disks with bitmaps record.
//! 2. Bitmaps are switched, and the moment comes, for all disks at once. No write to disks with bitmaps is answered in between, so a
//!    client that pulls an increment finds all writes that were answered before the moment in the bitmaps of before. From here on,
//!    successors of the backups' bitmaps record as well.
//! 3. Writes of before the moment end. They are in the backup, so they belong to what is dirty for it, whether they are in the bitmap
//!    or already in the successor. Bitmaps of before [get them](super::writes_under_way) as well.
//! 4. The copiers begin.
//!
//! The jobs exist before the first step, in which requests may have to wait for a target: cancelling the job ends that.

use std::sync::Arc;

use block::dirty_bitmap::{BitmapAction, BitmapUse};
use block::{CopyMoment, Node};

use super::backup::JobPlan;
use super::bitmaps::{self, BitmapPlan};
use super::one_connection::check_iothreads_of_backups;
use super::users::{reattach_users, wait_for_requests_of_users};
use super::writes_under_way::WritesUnderWay;
use crate::error::BoxError;
use crate::state::DaemonObjects;

/// Changes that were checked as far as the state allows.
pub(crate) struct TransactionPlan {
    bitmaps: BitmapPlan,
    under_way: WritesUnderWay,
    pub backups: Vec<JobPlan>,
    moment: Arc<CopyMoment>,
}

/// Nodes and jobs that are reserved until a transaction is done.
pub(crate) struct TransactionReservation {
    nodes: Vec<String>,
    /// Their numbers.
    jobs: Vec<u64>,
}

impl TransactionReservation {
    /// Releases the nodes of a transaction that was carried out. Its jobs start.
    pub fn release(&self, objects: &mut DaemonObjects) {
        objects.release_nodes(&self.nodes);
    }

    /// Releases the nodes of a transaction that has failed, and removes its jobs.
    pub fn release_and_remove_jobs(&self, objects: &mut DaemonObjects) {
        objects.release_nodes(&self.nodes);
        objects.remove_unstarted_jobs(&self.jobs);
    }
}

impl TransactionPlan {
    /// Plans changes of bitmaps in this order, with the node of each, and backups as of `moment`. The changes have the
    /// [beginnings of the backups](JobPlan::bitmap_action) in their places.
    pub fn new(
        objects: &DaemonObjects,
        mut changes: Vec<(Arc<Node>, BitmapAction)>,
        backups: Vec<JobPlan>,
        moment: Arc<CopyMoment>,
    ) -> Result<Self, BoxError> {
        check_backups_apart(&backups)?;
        let under_way = WritesUnderWay::add_bitmaps(&mut changes, &backups);
        let (nodes, actions): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let bitmaps = bitmaps::plan(objects, &nodes, actions)?;
        check_targets_recorded_before(&bitmaps, &backups)?;
        check_iothreads_of_backups(&backups, objects)?;
        Ok(TransactionPlan {
            bitmaps,
            under_way,
            backups,
            moment,
        })
    }

    /// Whether it waits for requests or files.
    pub fn may_wait(&self) -> bool {
        self.bitmaps.may_wait() || !self.backups.is_empty()
    }

    /// Reserves all nodes of the disks, so that no other command exchanges their nodes meanwhile, and adds the jobs, which clients can
    /// cancel from now on. With `ends_together` either all of them succeed, or none.
    pub fn reserve(
        &self,
        objects: &mut DaemonObjects,
        ends_together: bool,
    ) -> Result<TransactionReservation, BoxError> {
        let disks = self.backups.iter();
        let disks = disks.flat_map(|backup| [&backup.source, &backup.target]);
        let affected: Vec<_> = self.bitmaps.affected_nodes().chain(disks).collect();
        let is_affected = |node: &Node| affected.iter().any(|disk| disk.shares_disk_with(node));
        let nodes = objects.nodes.iter().map(|open| &open.node);
        let nodes = nodes.filter(|node| is_affected(node));
        let names: Vec<String> = nodes.map(|node| node.name().to_owned()).collect();
        let command = match self.backups.is_empty() {
            true => "change of dirty bitmaps",
            false => "command that begins a job",
        };
        objects.reserve_nodes(&names, command)?;
        let numbers: Vec<u64> = self.backups.iter().map(|backup| backup.number).collect();
        let group = numbers.first().copied().filter(|_| ends_together);
        for backup in &self.backups {
            objects.add_job(backup.new_job(group));
        }
        Ok(TransactionReservation {
            nodes: names,
            jobs: numbers,
        })
    }

    /// Carries it out, all of it or nothing, and returns the uses of the backups' bitmaps. This waits for requests in flight.
    pub fn carry_out(&self) -> Result<Vec<Option<BitmapUse>>, BoxError> {
        let filters = FiltersOfBackups::set(&self.backups);
        let at_moment = || self.moment.begin();
        let uses = self.bitmaps.carry_out(at_moment, |begun| {
            for backup in &self.backups {
                wait_for_requests_of_users(&backup.users);
            }
            self.under_way.merge_and_remove_bitmaps()?;
            let mut begun = begun.into_iter();
            let mut uses = Vec::new();
            for backup in &self.backups {
                let bitmap = backup.bitmap.as_ref();
                let bitmap = bitmap.and_then(|_| begun.next());
                limit_to_dirty(backup, bitmap.as_ref())?;
                uses.push(bitmap);
            }
            Ok(uses)
        })?;
        filters.leave_to_jobs();
        Ok(uses)
    }
}

/// The filters *copy before write* of backups that have not begun. They are taken away if it is dropped.
struct FiltersOfBackups<'a>(&'a [JobPlan]);

impl<'a> FiltersOfBackups<'a> {
    /// Gives all routes of the sources a filter.
    fn set(backups: &'a [JobPlan]) -> Self {
        let filters = FiltersOfBackups(backups);
        for backup in backups {
            backup.set_filter();
            reattach_users(&backup.users);
        }
        filters
    }

    /// The backups have begun.
    fn leave_to_jobs(mut self) {
        self.0 = &[];
    }
}

impl Drop for FiltersOfBackups<'_> {
    fn drop(&mut self) {
        for backup in self.0 {
            backup.copy.end();
            let _cancellation = backup.copy.cancel_requests_to_target();
            backup.source.remove_copy_filter();
            reattach_users(&backup.users);
        }
    }
}

/// Limits a backup to what is dirty at its moment in the bitmap that it uses, if it copies only that.
fn limit_to_dirty(backup: &JobPlan, bitmap: Option<&BitmapUse>) -> Result<(), BoxError> {
    let limits = backup.bitmap.as_ref().is_some_and(|bitmap| bitmap.limits);
    let mut marked = Ok(());
    if let Some(bitmap) = bitmap.filter(|_| limits) {
        backup
            .copy
            .limit_to_dirty(|wanted| marked = bitmap.mark_with_successor(wanted));
    }
    Ok(marked?)
}

/// Refuses a bitmap that begins to record on a disk in the transaction in which a backup begins to write there: routes to targets, which
/// are made first, would not record.
fn check_targets_recorded_before(
    bitmaps: &BitmapPlan,
    backups: &[JobPlan],
) -> Result<(), BoxError> {
    for node in bitmaps.nodes_that_begin_to_record() {
        let mut backups = backups.iter();
        if let Some(backup) = backups.find(|backup| backup.target.leads_through(node)) {
            return Err(format!(
                "Node '{}' is busy: backup '{}' begins to write there in this transaction, so no bitmap can begin to record; let it \
                 record in a command before",
                node.name(),
                backup.id
            )
            .into());
        }
    }
    Ok(())
}

/// Refuses backups of one transaction that use the same disk or id.
fn check_backups_apart(backups: &[JobPlan]) -> Result<(), BoxError> {
    for (index, backup) in backups.iter().enumerate() {
        for other in &backups[..index] {
            if backup.id == other.id {
                return Err(format!("Job ID '{}' already in use", backup.id).into());
            }
            for one in [&backup.source, &backup.target] {
                for two in [&other.source, &other.target] {
                    if one.is_on_same_path_as(two) {
                        return Err(format!(
                            "Node '{}' is busy: block device is in use by block job: backup '{}'",
                            one.name(),
                            other.id
                        )
                        .into());
                    }
                }
            }
        }
    }
    Ok(())
}
