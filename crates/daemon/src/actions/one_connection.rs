//! The iothreads that send requests to disks of NBD servers: only one may, if the server allows one connection.
//!
//! Requests come from exports, and from jobs: a job sends some to both of its disks from its own iothread, and others to its target
//! from the iothreads of all exports of the disk that it copies.

use std::sync::Arc;

use block::Node;
use options::ExportOptions;

use super::backup::JobPlan;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::job::JobDisks;
use crate::state::objects::DEFAULT_IOTHREAD;

/// A node to which an iothread sends requests.
type Sender = (Arc<Node>, String);

/// Refuses an export that sends requests to a disk from several iothreads, or from another one than what uses the disk already, if
/// the NBD server of the disk allows one connection only.
pub(crate) fn check_iothreads_of_export(
    options: &ExportOptions,
    objects: &DaemonObjects,
) -> Result<(), BoxError> {
    let luns = options.kind.luns().into_iter().flatten();
    let names = luns.map(|lun| &lun.node_name).chain([&options.node_name]);
    check_iothreads_of_nodes(names, &options.iothreads, objects)
}

/// Refuses nodes of an export on these iothreads for the same reason.
pub(crate) fn check_iothreads_of_nodes<'a>(
    names: impl IntoIterator<Item = &'a String>,
    iothreads: &[String],
    objects: &DaemonObjects,
) -> Result<(), BoxError> {
    let names = names.into_iter();
    let nodes = names.filter_map(|name| objects.find_node(name));
    let nodes = nodes.map(|open| open.node.clone());
    let mut new = senders_of_export(iothreads, nodes);
    let jobs = objects.jobs.iter().flat_map(|job| &job.disks);
    new.extend(
        jobs.flat_map(|disks| senders_to_target(disks, &new))
            .collect::<Vec<_>>(),
    );
    check_iothreads(new, existing_senders(objects))
}

/// Refuses backups for the same reason.
pub(super) fn check_iothreads_of_backups(
    backups: &[JobPlan],
    objects: &DaemonObjects,
) -> Result<(), BoxError> {
    let of_exports = senders_of_exports(objects);
    let new = backups.iter().flat_map(|backup| {
        let disks = JobDisks::new(backup.source.clone(), backup.target.clone());
        senders_of_job(&disks, backup.iothread.id(), &of_exports)
    });
    check_iothreads(new.collect(), existing_senders(objects))
}

/// All senders there are.
fn existing_senders(objects: &DaemonObjects) -> Vec<Sender> {
    let mut all = senders_of_exports(objects);
    let of_jobs = objects.jobs.iter().flat_map(|job| {
        let disks = job.disks.iter();
        disks.flat_map(|disks| senders_of_job(disks, &job.iothread, &all))
    });
    let of_jobs: Vec<_> = of_jobs.collect();
    all.extend(of_jobs);
    all
}

fn senders_of_exports(objects: &DaemonObjects) -> Vec<Sender> {
    let exports = objects.exports.iter();
    let senders = exports.flat_map(|export| {
        let nodes = export.disks.iter().map(|disk| disk.node.get());
        senders_of_export(&export.options.iothreads, nodes)
    });
    senders.collect()
}

/// The senders of an export of these nodes.
fn senders_of_export(iothreads: &[String], nodes: impl Iterator<Item = Arc<Node>>) -> Vec<Sender> {
    let default = [DEFAULT_IOTHREAD.to_owned()];
    let iothreads = match iothreads {
        [] => &default,
        named => named,
    };
    let senders = nodes.flat_map(|node| {
        let iothreads = iothreads.iter().cloned();
        iothreads.map(move |iothread| (node.clone(), iothread))
    });
    senders.collect()
}

/// The senders of a job on an iothread, beside these of exports.
fn senders_of_job(disks: &JobDisks, iothread: &str, of_exports: &[Sender]) -> Vec<Sender> {
    let own = disks
        .nodes()
        .map(|node| (node.clone(), iothread.to_owned()));
    own.into_iter()
        .chain(senders_to_target(disks, of_exports))
        .collect()
}

/// The senders to the target of a job: those of the disk that it copies, for what they change.
fn senders_to_target(disks: &JobDisks, of_exports: &[Sender]) -> Vec<Sender> {
    let writers = of_exports
        .iter()
        .filter(|(node, _)| node.leads_through(&disks.source));
    writers
        .map(|(_, iothread)| (disks.target.clone(), iothread.clone()))
        .collect()
}

/// Refuses new senders to a disk that has one connection, if they and those that exist are on several iothreads.
fn check_iothreads(new: Vec<Sender>, existing: Vec<Sender>) -> Result<(), BoxError> {
    let all: Vec<&Sender> = new.iter().chain(&existing).collect();
    for (node, _) in &new {
        let Some(disk) = node.underlying_nbd() else {
            continue;
        };
        if disk.features().multi_conn {
            continue;
        }
        let uses_disk = |(node, _): &&&Sender| {
            let other = node.underlying_nbd();
            other.is_some_and(|other| Arc::ptr_eq(other, disk))
        };
        let iothreads = all.iter().filter(uses_disk);
        let mut iothreads: Vec<&str> = iothreads.map(|(_, iothread)| iothread.as_str()).collect();
        iothreads.sort_unstable();
        iothreads.dedup();
        if iothreads.len() > 1 {
            return Err(format!(
                "node '{}' is {}, whose server allows one connection (it does not offer NBD_FLAG_CAN_MULTI_CONN): only one \
                 iothread can serve it, not {}",
                node.name(),
                disk.options(),
                iothreads.join(", ")
            )
            .into());
        }
    }
    Ok(())
}
