//! The life of jobs: from the [start](super::job_start) of their copiers to their end, and the commands of clients in between.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{BlockCopy, CopyFailure, CopySide, Node};
use copier::CopierReport;
use iothread::{Errno, ErrorAction, IoStatus};
use serde_json::json;

use super::image_resize::adopt_announced_sizes;
use super::mirror::find_working_job;
use super::users::{reattach_users, users_of_node};
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::errno_text::errno_text;
use crate::error::BoxError;
use crate::state::job::{Job, JobDisks, JobOutcome};
use crate::state::job_status::{JobStatus, JobVerb};
use crate::state::mirror_job::MirrorEnd;

/// The error of a job whose target may lack what was copied.
const LOST_WRITES: &str =
    "the connection to the target broke: its server may have lost what was not flushed";

impl MainThread {
    /// Handles a report of a job's copier.
    pub(super) fn on_copier_report(&mut self, number: u64, report: CopierReport) {
        match report {
            CopierReport::Failed(failure, action) => self.on_job_error(number, failure, action),
            CopierReport::Ready => self.on_mirror_ready(number),
            CopierReport::InSync => self.on_mirror_in_sync(number),
            CopierReport::Ended(Ok(())) => self.begin_end_of_job(number, JobOutcome::Completed),
            CopierReport::Ended(Err(failure)) => self.fail_job(number, failure),
        }
    }

    /// Ends a job that could not copy what a guest has changed.
    pub fn on_failed_write_copy(&mut self, number: u64, failure: CopyFailure) {
        self.on_job_error(number, failure, ErrorAction::Report);
        self.fail_job(number, failure);
    }

    /// Begins the end of a job that could not copy something.
    pub(super) fn fail_job(&mut self, number: u64, failure: CopyFailure) {
        let mut jobs = self.objects.jobs.iter();
        let job = jobs.find(|job| job.number == number);
        let is_of_target = failure.side == CopySide::Target;
        let error = match job.is_some_and(|job| is_of_target && job.may_have_lost_writes()) {
            true => LOST_WRITES.to_owned(),
            false => text_of_errno(failure.errno),
        };
        self.begin_end_of_job(number, JobOutcome::Failed(error));
    }

    /// Fails mirrors behind these nodes, whose guest is being migrated, that are not ready. A ready one may copy the rest, unless it is
    /// paused or `is_time_up`. False while a mirror may write to its target.
    pub fn finish_or_fail_mirrors(&mut self, nodes: &[Arc<Node>], is_time_up: bool) -> bool {
        let (mut are_quiet, mut incomplete) = (true, Vec::new());
        for job in &self.objects.jobs {
            let is_source = |source: &Node| nodes.iter().any(|node| node.leads_through(source));
            let is_used = |disks: &JobDisks| is_source(&disks.source);
            if job.mirror.is_none() || !job.disks.as_ref().is_some_and(is_used) {
                continue;
            }
            let is_complete = job.is_ready() && job.pending_bytes() == 0;
            are_quiet &= match job.outcome {
                None => is_complete,
                Some(JobOutcome::Completed) => true,
                // Nothing is in flight of one that has not started; the thread that starts it may wait for this export.
                Some(_) => job.is_starting || job.control.stopped.load(Ordering::Acquire),
            };
            let will_be_complete = job.is_ready() && !job.is_paused() && !is_time_up;
            if job.outcome.is_none() && !is_complete && !will_be_complete {
                incomplete.push(job.number);
            }
        }
        for number in incomplete {
            let error = "its guest was migrated before the target was complete";
            self.begin_end_of_job(number, JobOutcome::Failed(error.to_owned()));
        }
        are_quiet
    }

    fn on_job_error(&mut self, number: u64, failure: CopyFailure, action: ErrorAction) {
        let events = &self.objects.events;
        let mut jobs = self.objects.jobs.iter_mut();
        let job = jobs.find(|job| job.number == number && job.outcome.is_none());
        let Some(job) = job else {
            return;
        };
        let operation = match failure.side {
            CopySide::Source => "read",
            CopySide::Target => "write",
        };
        tracing::warn!(
            job = job.id,
            operation,
            action = action.name(),
            error = text_of_errno(failure.errno),
            "job failed to copy"
        );
        events.emit(
            "BLOCK_JOB_ERROR",
            json!({"device": job.id, "operation": operation, "action": action.name()}),
        );
        // A client may have resumed it since.
        if action == ErrorAction::Stop && job.is_paused() {
            job.io_status = match failure.errno {
                Errno::NOSPC => IoStatus::NoSpace,
                _ => IoStatus::Failed,
            };
            if matches!(job.status, JobStatus::Running | JobStatus::Ready) {
                job.set_status(job.working_status(), events);
            }
        }
    }

    /// Begins the end of a job's work. A job that is starting ends when its transaction has been carried out.
    pub(super) fn begin_end_of_job(&mut self, number: u64, outcome: JobOutcome) {
        let objects = &mut self.objects;
        let mut jobs = objects.jobs.iter_mut();
        let job = jobs.find(|job| job.number == number && job.outcome.is_none());
        let Some(job) = job else {
            return;
        };
        if outcome != JobOutcome::Completed {
            job.abort_work();
            job.set_status(JobStatus::Aborting, &objects.events);
        }
        job.outcome = Some(outcome);
        if !job.is_starting {
            self.end_work_of_job(number);
        }
    }

    /// Ends the work of a job whose outcome is known: a thread waits for its requests, and takes the filter away.
    pub(super) fn end_work_of_job(&mut self, number: u64) {
        let objects = &mut self.objects;
        let Some(job) = objects.jobs.iter_mut().find(|job| job.number == number) else {
            return;
        };
        let Some(disks) = &job.disks else {
            return;
        };
        let (copier, source) = (job.copier.take(), disks.source.clone());
        let copier_control = job.control.clone();
        // Data of before the moment of a copy, or that counts as copied after a failure.
        let is_flushed = job.ends_as_copy() || job.clears_bitmap_after_failure();
        let copied_to = is_flushed.then(|| disks.target.clone());
        let copy = job.work.copy().cloned();
        let name = format!("end {}", job.id);
        source.remove_copy_filter();
        let users = users_of_node(objects, &source);
        self.spawn_command_thread(
            name,
            CommandOnShutdown::Wait,
            move || {
                if let Some(copier) = copier {
                    copier.stop();
                }
                copier_control.stopped.store(true, Ordering::Release);
                reattach_users(&users);
                match (copied_to, copy) {
                    (Some(target), Some(copy)) => flush_target(&target, &copy),
                    _ => Ok(()),
                }
            },
            // Without a thread the routes keep the filter, which does nothing any more.
            move |control, ended| {
                let mut jobs = control.objects.jobs.iter_mut();
                let job = jobs.find(|job| job.number == number);
                match (ended, job) {
                    (Err(error), Some(job)) if job.ends_as_copy() => {
                        job.outcome = Some(JobOutcome::Failed(error.text));
                    }
                    (Err(error), Some(job)) if job.clears_bitmap_after_failure() => {
                        job.keep_bitmap_dirty(&error.text);
                    }
                    _ => {}
                }
                control.on_job_work_ended(number);
            },
        );
    }

    /// Concludes a job whose work has ended, or lets it wait for others or for a command.
    pub(super) fn on_job_work_ended(&mut self, number: u64) {
        let objects = &mut self.objects;
        let Some(job) = objects.jobs.iter_mut().find(|job| job.number == number) else {
            return;
        };
        if job.has_lost_last_writes() {
            job.outcome = Some(JobOutcome::Failed(text_of_errno(Errno::IO)));
        }
        match job.outcome.clone() {
            Some(JobOutcome::Completed) => {
                job.set_status(JobStatus::Waiting, &objects.events);
                self.finalize_if_group_is_ready(number);
            }
            outcome => self.conclude_job(number, outcome.unwrap_or(JobOutcome::Cancelled)),
        }
    }

    /// The numbers of the jobs that end together with this one.
    fn numbers_of_group(&self, number: u64) -> Vec<u64> {
        let jobs = &self.objects.jobs;
        let group = jobs.iter().find(|job| job.number == number);
        let group = group.and_then(|job| job.group);
        let is_member = |job: &&Job| job.number == number || group.is_some() && job.group == group;
        let members = jobs.iter().filter(is_member);
        members.map(|job| job.number).collect()
    }

    /// Moves the jobs of a group on if all of them have done their work.
    fn finalize_if_group_is_ready(&mut self, number: u64) {
        let group = self.numbers_of_group(number);
        let objects = &mut self.objects;
        let is_member = |job: &Job| group.contains(&job.number);
        let mut members = objects.jobs.iter().filter(|job| is_member(job));
        if !members.all(|job| job.status == JobStatus::Waiting) {
            return;
        }
        let mut is_automatic = true;
        for job in objects.jobs.iter_mut().filter(|job| is_member(job)) {
            job.set_status(JobStatus::Pending, &objects.events);
            if !job.auto_finalize {
                is_automatic = false;
                let data = json!({"type": job.type_name(), "id": job.id});
                objects.events.emit("BLOCK_JOB_PENDING", data);
            }
        }
        if is_automatic {
            self.finalize_group(&group);
        }
    }

    fn finalize_group(&mut self, group: &[u64]) {
        for number in group {
            self.conclude_job(*number, JobOutcome::Completed);
        }
    }

    /// Concludes a job, dismisses it if it need not wait for that, and cancels those that end together with it if it has not succeeded.
    fn conclude_job(&mut self, number: u64, outcome: JobOutcome) {
        let has_failed = outcome != JobOutcome::Completed;
        let group = self.numbers_of_group(number);
        let objects = &mut self.objects;
        let events = &objects.events;
        let Some(index) = objects.jobs.iter().position(|job| job.number == number) else {
            return;
        };
        if has_failed && let Some(disks) = &objects.jobs[index].disks {
            let target = &disks.target;
            let is_of_job_only =
                !disks.target_had_unflushed && !objects.is_disk_used_besides_job(target, number);
            if is_of_job_only {
                target.forget_unflushed();
            }
        }
        let job = &mut objects.jobs[index];
        tracing::info!(job = job.id, ?outcome, "job ended");
        job.conclude(outcome, events);
        if job.auto_dismiss {
            job.set_status(JobStatus::Null, events);
            objects.jobs.remove(index);
        }
        if has_failed {
            for other in group {
                self.cancel_job_work(other);
            }
        }
        adopt_announced_sizes(self);
    }

    /// Cancels a job that has not ended.
    fn cancel_job_work(&mut self, number: u64) {
        let mut jobs = self.objects.jobs.iter_mut();
        let Some(job) = jobs.find(|job| job.number == number) else {
            return;
        };
        match (job.status, &job.outcome) {
            (JobStatus::Waiting | JobStatus::Pending, _) => {
                self.conclude_job(number, JobOutcome::Cancelled);
            }
            // The thread that creates it says how it ends: the image may be complete.
            (_, None) if !job.is_block_job() => job.work.end(),
            (_, None) => self.begin_end_of_job(number, JobOutcome::Cancelled),
            // Guests use the target, or are about to.
            (_, Some(JobOutcome::Completed)) if job.switches_over() => {}
            // Its filter is being taken away.
            (
                JobStatus::Running | JobStatus::Paused | JobStatus::Ready | JobStatus::Standby,
                Some(JobOutcome::Completed),
            ) => {
                job.outcome = Some(JobOutcome::Cancelled);
                job.abort_work();
                job.set_status(JobStatus::Aborting, &self.objects.events);
            }
            _ => {}
        }
    }

    /// Carries out a command for the job of this number.
    pub fn run_job_verb(&mut self, number: u64, verb: JobVerb) -> Result<(), BoxError> {
        let objects = &mut self.objects;
        let Some(index) = objects.jobs.iter().position(|job| job.number == number) else {
            return Err("Job not found".into());
        };
        let job = &mut objects.jobs[index];
        job.check_verb(verb)?;
        match verb {
            JobVerb::CancelUnlessReady if job.is_ready() && job.outcome.is_none() => {
                self.begin_end_of_mirror(number, MirrorEnd::Copy)?;
                let events = self.objects.events.clone();
                if let Some(job) = find_working_job(&mut self.objects, number) {
                    job.resume_if_paused(&events);
                }
            }
            JobVerb::Cancel | JobVerb::CancelUnlessReady => self.cancel_job_work(number),
            JobVerb::Complete => self.begin_end_of_mirror(number, MirrorEnd::SwitchOver)?,
            JobVerb::Pause => {
                if !job.control.pause() {
                    return Err("Job is already paused".into());
                }
                job.set_status(job.working_status(), &objects.events);
                job.notify_copier();
            }
            JobVerb::Resume => {
                if !job.resume_if_paused(&objects.events) {
                    return Err("Can't resume a job that was not paused".into());
                }
            }
            JobVerb::Finalize => {
                let group = self.numbers_of_group(number);
                self.finalize_group(&group);
            }
            JobVerb::Dismiss => {
                job.set_status(JobStatus::Null, &objects.events);
                objects.jobs.remove(index);
            }
            JobVerb::SetSpeed => {}
        }
        Ok(())
    }

    /// Limits the speed of a job, in bytes per second; 0: no limit.
    pub fn set_job_speed(&mut self, number: u64, speed: u64) -> Result<(), BoxError> {
        self.run_job_verb(number, JobVerb::SetSpeed)?;
        let mut jobs = self.objects.jobs.iter();
        if let Some(job) = jobs.find(|job| job.number == number) {
            job.control.speed.store(speed, Ordering::Relaxed);
            job.notify_copier();
        }
        Ok(())
    }
}

/// Flushes the target of a copy that has ended, and checks that it has lost nothing before.
fn flush_target(target: &Node, copy: &BlockCopy) -> Result<(), qmp::Error> {
    // Without a flush if it is of no use: the server may be gone.
    if !copy.may_have_lost_writes() {
        let flushed = target.flush_blocking();
        flushed.map_err(|error| qmp::Error::generic(error.to_string()))?;
    }
    match copy.may_have_lost_writes() {
        true => Err(qmp::Error::generic(LOST_WRITES)),
        false => Ok(()),
    }
}

/// Refuses a node that takes the place of one above the source of a job and does not lead there: the job would miss writes.
pub(super) fn check_leads_to_sources(
    old: &Node,
    new: &Node,
    sources: &[Arc<Node>],
) -> Result<(), BoxError> {
    let is_lost = |source: &&Arc<Node>| old.leads_through(source) && !new.leads_through(source);
    match sources.iter().find(is_lost) {
        None => Ok(()),
        Some(source) => Err(format!(
            "Node '{}' is above '{}', which a job copies, and would not be any more: wait for the end \
             of the job, or cancel it",
            new.name(),
            source.name()
        )
        .into()),
    }
}

/// The text of an error, as QEMU shows it.
fn text_of_errno(errno: Errno) -> String {
    errno_text(&io::Error::from_raw_os_error(errno.raw_os_error()))
}
