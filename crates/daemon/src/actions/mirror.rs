//! Mirrors of disks, the jobs of `blockdev-mirror`: their plan, and their end.
//!
//! A mirror that is to end goes through these steps. Queues do not stop for them:
//! 1. All routes to the source get the filter that writes to both disks, and requests of the old ones are waited for.
//! 2. The copier copies what is left, and flushes the target.
//! 3. In one atomic step guests go over to the target, or the mirror ends as a copy.
//! 4. Routes that lead to the target without the filter, or to the source, replace those of before.
//!
//! An error before the third step leaves guests where they are. There is none afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyFailure, MAX_COPY_PIECE_BYTES, MirrorMode, Node, NodeError,
};
use copier::{CopierControl, CopierSettings, CopierWork};
use iothread::OnError;
use options::ExportKind;
use qmp::Error;

use super::backup::{
    JobPlan, check_disks, check_job_id, different_sizes, iothread_of_job, usable_node,
};
use super::users::{check_no_export_draining, move_users_to_target, reattach_users, users_of_node};
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::disk::exported_disk::{GuestDevice, NodeSlot};
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::job::{Job, JobOutcome};
use crate::state::mirror_job::{MirrorEnd, MirrorJob, UnlockedWrites};

/// Bytes that are copied at once unless `buf-size` says so: QEMU's default.
const DEFAULT_BUFFER_BYTES: u64 = 16 << 20;

/// Options of a mirror.
pub(crate) struct MirrorOptions {
    pub job_id: String,
    pub device: String,
    pub target: String,
    pub speed: u64,
    pub granularity: u64,
    pub buffer_bytes: u64,
    pub on_source_error: OnError,
    pub on_target_error: OnError,
    pub is_write_blocking: bool,
    pub target_is_zero: bool,
    pub auto_dismiss: bool,
}

/// Checks the options, and plans a mirror. `on_failed` gets the number of the job if a guest's flush has failed on the target.
pub(crate) fn plan(
    objects: &mut DaemonObjects,
    options: MirrorOptions,
    on_failed: impl Fn(u64, CopyFailure) + Send + Sync + 'static,
) -> Result<JobPlan, BoxError> {
    let source = usable_node(objects, &options.device)?.node.clone();
    let target = usable_node(objects, &options.target)?.node.clone();
    check_granularity(options.granularity)?;
    check_job_id(objects, &options.job_id)?;
    if Arc::ptr_eq(&source, &target) {
        return Err("Can't mirror node into itself".into());
    }
    check_is_top(objects, &source)?;
    check_disks(objects, &source, &target)?;
    if source.size() != target.size() {
        return Err(different_sizes(&source, &target));
    }
    let number = objects.job_count;
    objects.job_count += 1;
    let on_failed = move |failure| on_failed(number, failure);
    let copy = BlockCopy::new_mirror(source.size(), options.target_is_zero, on_failed)?;
    let control = CopierControl::default();
    control.speed.store(options.speed, Ordering::Relaxed);
    let buffer = match options.buffer_bytes {
        0 => DEFAULT_BUFFER_BYTES,
        bytes => bytes.max(COPY_CLUSTER_BYTES),
    };
    let max_chunk = MAX_COPY_PIECE_BYTES.min(buffer) / COPY_CLUSTER_BYTES * COPY_CLUSTER_BYTES;
    Ok(JobPlan {
        id: options.job_id,
        number,
        copy,
        control: Arc::new(control),
        settings: CopierSettings {
            on_source_error: options.on_source_error,
            on_target_error: options.on_target_error,
            max_workers: usize::try_from(buffer / max_chunk).unwrap_or(usize::MAX),
            max_chunk,
            clones: true,
            work: CopierWork::Mirror,
        },
        iothread: iothread_of_job(objects, &source)?,
        users: users_of_node(objects, &source),
        source,
        target,
        bitmap: None,
        mirror: Some(MirrorJob {
            is_write_blocking: options.is_write_blocking,
            ..MirrorJob::default()
        }),
        auto_finalize: true,
        auto_dismiss: options.auto_dismiss,
    })
}

/// QEMU's rule.
fn check_granularity(granularity: u64) -> Result<(), BoxError> {
    match granularity {
        0 => Ok(()),
        512..=0x400_0000 if granularity.is_power_of_two() => Ok(()),
        512..=0x400_0000 => Err("Parameter 'granularity' expects a power of 2".into()),
        _ => Err("Parameter 'granularity' expects a value in range [512B, 64MB]".into()),
    }
}

/// Refuses a source below other nodes, as QEMU does: these would have to go over to the target as well.
fn check_is_top(objects: &DaemonObjects, source: &Arc<Node>) -> Result<(), BoxError> {
    let mut nodes = objects.nodes.iter().map(|open| &open.node);
    let above = nodes.find(|node| !Arc::ptr_eq(node, source) && node.leads_through(source));
    match above {
        Some(above) => Err(format!(
            "Need a root block node: '{}' is below '{}'",
            source.name(),
            above.name()
        )
        .into()),
        None => Ok(()),
    }
}

/// Checks that the guests of a mirror's source can use its target instead, and prepares it for the blocks that they write.
fn prepare_target_for_guests(
    objects: &mut DaemonObjects,
    number: u64,
    source: &Arc<Node>,
    target: &Node,
) -> Result<(), BoxError> {
    check_exports_can_switch_over(objects, source, target)?;
    let disks = objects.exports.iter().flat_map(|export| &export.disks);
    let disks = disks.filter(|disk| disk.node.get().leads_through(source));
    let guests: Vec<(NodeSlot, GuestDevice)> = disks
        .map(|disk| (disk.node.clone(), disk.guest_device.clone()))
        .collect();
    let Some(job) = find_working_job(objects, number) else {
        return Ok(());
    };
    let Some(disks) = &mut job.disks else {
        return Ok(());
    };
    // Exports may have gone since, and others come.
    let is_of_guest = |slot: &NodeSlot| guests.iter().any(|(guest, _)| guest.is_same(slot));
    disks
        .target_block_modes
        .retain(|(slot, _)| is_of_guest(slot));
    let known = &disks.target_block_modes;
    let is_known = |guest: &NodeSlot| known.iter().any(|(slot, _)| slot.is_same(guest));
    let added = guests.iter().filter(|(slot, _)| !is_known(slot));
    let added = added.map(|(slot, guest)| Ok((slot.clone(), guest.try_set_block_size_of(target)?)));
    let added = added.collect::<Result<Vec<_>, NodeError>>()?;
    if let Some(mirror) = &mut job.mirror
        && !added.is_empty()
    {
        mirror.note_new_block_modes();
    }
    disks.target_block_modes.extend(added);
    Ok(())
}

/// Why guests of a job's source could not use its target if the job was to be completed now; `None`: they could, or it is no mirror.
pub(crate) fn reason_against_completion(objects: &DaemonObjects, job: &Job) -> Option<String> {
    let disks = job.disks.as_ref().filter(|_| job.mirror.is_some())?;
    let checked = check_exports_can_switch_over(objects, &disks.source, &disks.target);
    checked.err().map(|reason| reason.to_string())
}

/// Checks that all exports of a mirror's source can go over to another node.
fn check_exports_can_switch_over(
    objects: &DaemonObjects,
    source: &Arc<Node>,
    target: &Node,
) -> Result<(), BoxError> {
    check_is_top(objects, source)?;
    for export in &objects.exports {
        let options = &export.options;
        let mut disks = export.disks.iter();
        if !disks.any(|disk| disk.node.get().leads_through(source)) {
            continue;
        }
        match &options.kind {
            ExportKind::VhostUserBlk { .. } => {}
            ExportKind::Nbd(nbd) if nbd.bitmaps.is_empty() => {}
            ExportKind::Nbd(_) => {
                return Err(format!(
                    "export '{}' shows dirty bitmaps, which stay with node '{}': remove it before its clients go over to '{}'",
                    options.id,
                    source.name(),
                    target.name()
                )
                .into());
            }
            kind => {
                return Err(format!(
                    "export '{}' of type '{}' cannot go over to another node: end the mirror with block-job-cancel",
                    options.id,
                    kind.name()
                )
                .into());
            }
        }
    }
    Ok(())
}

impl MainThread {
    /// Handles the first report of a mirror that its target is almost the same.
    pub(super) fn on_mirror_ready(&mut self, number: u64) {
        let events = self.objects.events.clone();
        let Some(job) = find_working_job(&mut self.objects, number) else {
            return;
        };
        if let Some(mirror) = &mut job.mirror {
            mirror.is_ready = true;
        }
        job.set_status(job.working_status(), &events);
        events.emit("BLOCK_JOB_READY", job.event_data());
    }

    /// Begins the end of a mirror that is ready: from now on all routes write to both disks, and the copier copies what is left.
    pub(super) fn begin_end_of_mirror(
        &mut self,
        number: u64,
        end: MirrorEnd,
    ) -> Result<(), BoxError> {
        let objects = &mut self.objects;
        let Some((source, target)) = disks_of_working_job(objects, number) else {
            return Ok(());
        };
        check_no_export_draining(objects, &source)?;
        if end == MirrorEnd::SwitchOver {
            prepare_target_for_guests(objects, number, &source, &target)?;
        }
        let Some(job) = find_working_job(objects, number) else {
            return Ok(());
        };
        let (Some(mirror), Some(copy)) = (&mut job.mirror, job.work.copy()) else {
            return Ok(());
        };
        // A client may prefer another end, as long as it has not come.
        if mirror.end.replace(end).is_some() {
            return Ok(());
        }
        source.set_mirror(copy, &target, MirrorMode::Finish);
        let name = format!("end {}", job.id);
        self.reattach_users_and_proceed(name, &source, move |control, reattached| {
            if let Err(error) = reattached {
                let error = JobOutcome::Failed(error.text);
                control.begin_end_of_job(number, error);
            } else if let Some(job) = find_working_job(&mut control.objects, number) {
                job.control.finishing.store(true, Ordering::Release);
                job.notify_copier();
            }
        });
        Ok(())
    }

    /// Waits for the present requests of the guests of a mirror: those that write parts of blocks of the target may hold no lock.
    fn wait_for_unlocked_writes(&mut self, number: u64, source: &Node) {
        let Some(job) = find_working_job(&mut self.objects, number) else {
            return;
        };
        let Some(mirror) = &mut job.mirror else {
            return;
        };
        mirror.unlocked_writes = UnlockedWrites::Ending {
            others_possible: false,
        };
        let name = format!("end {}", job.id);
        self.reattach_users_and_proceed(name, source, move |control, ended| {
            if let Err(error) = ended {
                control.begin_end_of_job(number, JobOutcome::Failed(error.text));
            } else if let Some(job) = find_working_job(&mut control.objects, number)
                && let Some(mirror) = &mut job.mirror
            {
                mirror.unlocked_writes = match mirror.unlocked_writes {
                    UnlockedWrites::Ending {
                        others_possible: true,
                    } => UnlockedWrites::Possible,
                    _ => UnlockedWrites::Ended,
                };
            }
        });
    }

    /// Gives the users of a disk new routes and waits for requests on the old ones, in a thread of this name; then proceeds.
    fn reattach_users_and_proceed(
        &mut self,
        thread_name: String,
        disk: &Node,
        proceed: impl FnOnce(&mut MainThread, Result<(), Error>) + Send + 'static,
    ) {
        let users = users_of_node(&self.objects, disk);
        self.spawn_command_thread(
            thread_name,
            CommandOnShutdown::Wait,
            move || {
                reattach_users(&users);
                Ok(())
            },
            proceed,
        );
    }

    /// Ends a mirror, if that is possible now. Otherwise its copier goes on.
    pub(super) fn on_mirror_in_sync(&mut self, number: u64) {
        self.end_mirror_if_possible(number);
        if let Some(job) = find_working_job(&mut self.objects, number) {
            job.control.awaits_end.store(false, Ordering::Release);
            job.notify_copier();
        }
    }

    fn end_mirror_if_possible(&mut self, number: u64) {
        let objects = &mut self.objects;
        let Some((source, target)) = disks_of_working_job(objects, number) else {
            return;
        };
        // Requests of an export that is being removed may have begun before all routes wrote to both disks.
        if check_no_export_draining(objects, &source).is_err() {
            return;
        }
        let Some(job) = find_working_job(objects, number) else {
            return;
        };
        let (Some(mirror), Some(copy)) = (job.mirror, job.work.copy().cloned()) else {
            return;
        };
        if let Err(failure) = copy.check_target() {
            return self.fail_job(number, failure);
        }
        match mirror.end {
            Some(MirrorEnd::Copy) if copy.try_end_in_sync() => {
                self.begin_end_of_job(number, JobOutcome::Completed);
            }
            Some(MirrorEnd::SwitchOver) => self.switch_over(number, &source, &target, &copy),
            _ => {}
        }
    }

    /// Lets guests go over to the target.
    fn switch_over(
        &mut self,
        number: u64,
        source: &Arc<Node>,
        target: &Arc<Node>,
        copy: &Arc<BlockCopy>,
    ) {
        let objects = &mut self.objects;
        let shares_disk =
            |node: &Node| node.shares_disk_with(source) || node.shares_disk_with(target);
        let nodes = objects.nodes.iter().map(|open| &open.node);
        let nodes = nodes.filter(|node| shares_disk(node));
        let reserved: Vec<String> = nodes.map(|node| node.name().to_owned()).collect();
        // Another command may have reserved them for a moment.
        if objects.reserve_nodes(&reserved, "job-complete").is_err() {
            return;
        }
        let prepared = prepare_target_for_guests(objects, number, source, target);
        let mirror = find_working_job(objects, number).and_then(|job| job.mirror);
        let unlocked_writes = match mirror {
            Some(mirror) if target.has_partial_blocks() => mirror.unlocked_writes,
            _ => UnlockedWrites::Ended,
        };
        let can_end = prepared.is_ok() && unlocked_writes == UnlockedWrites::Ended;
        if !can_end || !copy.try_switch_over() {
            objects.release_nodes(&reserved);
            if let Err(error) = prepared {
                self.begin_end_of_job(number, JobOutcome::Failed(error.to_string()));
            } else if unlocked_writes == UnlockedWrites::Possible {
                self.wait_for_unlocked_writes(number, source);
            }
            return;
        }
        let users = users_of_node(objects, source);
        rename_node_of_exports(objects, source, target.name());
        objects.update_image_use();
        let Some(job) = find_working_job(objects, number) else {
            unreachable!("it worked a moment ago");
        };
        job.outcome = Some(JobOutcome::Completed);
        if let Some(disks) = &mut job.disks {
            for (_, mode) in disks.target_block_modes.drain(..) {
                mode.keep();
            }
        }
        let copier = job.copier.take();
        let name = format!("end {}", job.id);
        tracing::info!(
            job = job.id,
            source = source.name(),
            target = target.name(),
            "guests use the target"
        );
        let new = target.clone();
        let source = source.clone();
        self.spawn_command_thread(
            name,
            CommandOnShutdown::Wait,
            move || {
                if let Some(copier) = copier {
                    copier.stop();
                }
                move_users_to_target(&users, &new);
                Ok(())
            },
            // Without a thread the routes keep the filter, which sends all requests to the target.
            move |control, moved| {
                if moved.is_ok() {
                    source.remove_copy_filter();
                }
                control.objects.release_nodes(&reserved);
                control.on_job_work_ended(number);
            },
        );
    }
}

/// A job whose work has not ended.
pub(super) fn find_working_job(objects: &mut DaemonObjects, number: u64) -> Option<&mut Job> {
    let mut jobs = objects.jobs.iter_mut();
    jobs.find(|job| job.number == number && job.outcome.is_none())
}

/// Source and target of a job whose work has not ended.
fn disks_of_working_job(
    objects: &mut DaemonObjects,
    number: u64,
) -> Option<(Arc<Node>, Arc<Node>)> {
    let disks = find_working_job(objects, number)?.disks.as_ref()?;
    Some((disks.source.clone(), disks.target.clone()))
}

/// Changes the node in the descriptions of exports.
fn rename_node_of_exports(objects: &mut DaemonObjects, source: &Node, target: &str) {
    for export in &mut objects.exports {
        let disks = export.disks.iter_mut();
        for disk in disks.filter(|disk| disk.node_name == source.name()) {
            target.clone_into(&mut disk.node_name);
            if let GuestDevice::Nbd(nbd) = &disk.guest_device {
                nbd.set_node_name(target);
            }
        }
        if export.options.node_name == source.name() {
            target.clone_into(&mut export.options.node_name);
            if let ExportKind::Nbd(nbd) = &mut export.options.kind {
                // Its clients know it by this name.
                nbd.name.get_or_insert_with(|| source.name().to_owned());
            }
            if let Some(reports) = &export.reports {
                reports.set_node(target);
            }
        }
    }
}
