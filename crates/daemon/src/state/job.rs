//! Jobs in the daemon's state: their life cycle with the statuses of QEMU, their work, disks, bitmaps and settings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::dirty_bitmap::BitmapUse;
use block::{GuestBlockMode, Node};
use copier::CopierControl;
use iothread::{IoStatus, SocketDeviceCommand, SocketDeviceHandle};
use nbd::client::Cancellation;
use qmp::ServerHandle;
use serde_json::{Value, json};

use super::DaemonObjects;
use super::job_status::{JobStatus, JobVerb};
use super::job_work::JobWork;
use super::mirror_job::{MirrorEnd, MirrorJob};
use crate::disk::exported_disk::NodeSlot;
use crate::error::BoxError;

/// When the bits of what was copied are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitmapMode {
    /// If the job succeeds.
    OnSuccess,
    Never,
    /// Also if it fails, of what was copied.
    Always,
}

/// The end of a job's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobOutcome {
    Completed,
    /// With the text of the error.
    Failed(String),
    Cancelled,
}

/// The disks of a job.
pub(crate) struct JobDisks {
    pub source: Arc<Node>,
    pub target: Arc<Node>,
    /// Others have written to the target's disk and not flushed, before the job.
    pub target_had_unflushed: bool,
    /// The blocks of the guests that are to go over to the target, by their disks. They are taken back if these do not.
    pub target_block_modes: Vec<(NodeSlot, GuestBlockMode)>,
    /// Of the requests to the target, whose content does not matter any more.
    cancellation: Option<Cancellation>,
}

impl JobDisks {
    pub fn new(source: Arc<Node>, target: Arc<Node>) -> Self {
        JobDisks {
            target_had_unflushed: target.may_have_unflushed(),
            source,
            target,
            target_block_modes: Vec::new(),
            cancellation: None,
        }
    }

    pub fn nodes(&self) -> [&Arc<Node>; 2] {
        [&self.source, &self.target]
    }
}

/// A job.
pub(crate) struct Job {
    pub id: String,
    /// Its number among all jobs of this process: an id may be used again.
    pub number: u64,
    pub status: JobStatus,
    pub auto_finalize: bool,
    pub auto_dismiss: bool,
    /// The jobs of one transaction with `completion-mode=grouped`: they end together.
    pub group: Option<u64>,
    pub work: JobWork,
    /// `None` after its end, when they may be closed, and for a job that copies none.
    pub disks: Option<JobDisks>,
    pub control: Arc<CopierControl>,
    /// Its transaction is being carried out, and starts it in the end.
    pub is_starting: bool,
    /// `None` before and after its work, and for a job that copies no disk.
    pub copier: Option<Arc<SocketDeviceHandle>>,
    /// The iothread of the copier; empty without.
    pub iothread: String,
    pub bitmap: Option<(BitmapUse, BitmapMode)>,
    /// For a mirror.
    pub mirror: Option<MirrorJob>,
    pub io_status: IoStatus,
    pub error: Option<String>,
    /// Its work ends or has ended, and how.
    pub outcome: Option<JobOutcome>,
}

impl Job {
    /// Refuses a command in a status in which it is not allowed.
    pub fn check_verb(&self, verb: JobVerb) -> Result<(), BoxError> {
        if !verb.is_allowed_in(self.status) || self.outcome.is_some() && verb.needs_work() {
            return Err(format!(
                "Job '{}' in state '{}' cannot accept command verb '{}'",
                self.id,
                self.status.name(),
                verb.name()
            )
            .into());
        }
        match verb.needs_work() && !self.is_block_job() {
            true => Err(format!(
                "Job '{}' creates an image and does not pause: wait for its end, or cancel it by job-cancel",
                self.id
            )
            .into()),
            false => Ok(()),
        }
    }

    /// Begins the end of its work before everything is copied: nothing is begun any more, and what is in flight is cancelled.
    pub fn abort_work(&mut self) {
        self.work.end();
        let uses_target = self.switches_over() && self.outcome == Some(JobOutcome::Completed);
        if let (Some(disks), Some(copy)) = (&mut self.disks, self.work.copy())
            && !uses_target
            && disks.cancellation.is_none()
        {
            disks.cancellation = copy.cancel_requests_to_target();
        }
    }

    /// Whether it copies disks, and is one of the jobs that `query-block-jobs` lists.
    pub fn is_block_job(&self) -> bool {
        matches!(self.work, JobWork::Copy(_))
    }

    /// QEMU's name for its type.
    pub fn type_name(&self) -> &'static str {
        match (&self.work, self.mirror) {
            (JobWork::Create(_), _) => "create",
            (JobWork::Copy(_), None) => "backup",
            (JobWork::Copy(_), Some(_)) => "mirror",
        }
    }

    /// Whether it is a mirror whose target was almost the same once.
    pub fn is_ready(&self) -> bool {
        self.mirror.is_some_and(|mirror| mirror.is_ready)
    }

    /// Whether guests use the target of this mirror, or are about to, when its work ends.
    pub fn switches_over(&self) -> bool {
        self.mirror
            .is_some_and(|mirror| mirror.end == Some(MirrorEnd::SwitchOver))
    }

    /// Whether it is a mirror that has ended as a copy.
    pub fn ends_as_copy(&self) -> bool {
        self.mirror.is_some()
            && !self.switches_over()
            && self.outcome == Some(JobOutcome::Completed)
    }

    /// Whether the target may have lost what was copied.
    pub fn may_have_lost_writes(&self) -> bool {
        let copy = self.work.copy();
        copy.is_some_and(|copy| copy.may_have_lost_writes())
    }

    /// Whether the target of a mirror that has ended as a copy lacks writes or flushes that were in flight at its moment.
    pub fn has_lost_last_writes(&self) -> bool {
        let lacks = |copy: &Arc<block::BlockCopy>| {
            copy.pending_bytes() > 0 || copy.failed_write_copy().is_some()
        };
        self.ends_as_copy() && self.work.copy().is_some_and(lacks)
    }

    /// The status before its end: it is about to start, works, or does not because it is paused.
    pub fn working_status(&self) -> JobStatus {
        match (self.is_ready(), self.is_paused()) {
            _ if self.is_starting => JobStatus::Created,
            (false, false) => JobStatus::Running,
            (false, true) => JobStatus::Paused,
            (true, false) => JobStatus::Ready,
            (true, true) => JobStatus::Standby,
        }
    }

    /// Whether a client or an error has paused it.
    pub fn is_paused(&self) -> bool {
        self.control.is_paused()
    }

    /// Whether it works, or ends what was in flight when it was paused.
    pub fn is_busy(&self) -> bool {
        match self.is_paused() {
            true => self.copier.is_some() && !self.control.is_settled(),
            false => self.status == JobStatus::Running,
        }
    }

    /// Changes the status, and sends the event of a change.
    pub fn set_status(&mut self, status: JobStatus, events: &ServerHandle) {
        if self.status != status {
            self.status = status;
            self.emit_status(events);
        }
    }

    fn emit_status(&self, events: &ServerHandle) {
        events.emit(
            "JOB_STATUS_CHANGE",
            json!({"id": self.id, "status": self.status.name()}),
        );
    }

    /// Lets the copier go on. False: it was not paused.
    pub fn resume_if_paused(&mut self, events: &ServerHandle) -> bool {
        let was_paused = self.control.resume();
        if was_paused {
            self.io_status = IoStatus::Ok;
            self.set_status(self.working_status(), events);
            self.notify_copier();
        }
        was_paused
    }

    /// Has the copier look at its control.
    pub fn notify_copier(&self) {
        if let Some(copier) = &self.copier {
            copier.send_unless_stopped(SocketDeviceCommand::Run);
        }
    }

    /// What the events of its end have in common.
    pub fn event_data(&self) -> Value {
        let (offset, len) = self.progress();
        json!({
            "type": self.type_name(),
            "device": self.id,
            "len": len,
            "offset": offset,
            "speed": self.control.speed.load(Ordering::Relaxed),
        })
    }

    /// Bytes that are still to be copied.
    pub fn pending_bytes(&self) -> u64 {
        self.work.copy().map_or(0, |copy| copy.pending_bytes())
    }

    /// Bytes that were copied, and those that are to be copied in total. An image that is created counts as one.
    pub fn progress(&self) -> (u64, u64) {
        // In this order: what is copied in between counts once.
        let pending = self.pending_bytes();
        match &self.work {
            JobWork::Copy(copy) => {
                let copied = copy.copied_bytes();
                (copied, copied + pending)
            }
            JobWork::Create(_) => (u64::from(self.outcome.is_some()), 1),
        }
    }

    /// Ends a job whose work has ended, with its events.
    pub fn conclude(&mut self, outcome: JobOutcome, events: &ServerHandle) {
        self.end_bitmap_use(outcome == JobOutcome::Completed);
        if outcome != JobOutcome::Completed && self.status != JobStatus::Aborting {
            self.set_status(JobStatus::Aborting, events);
        }
        let mut data = self.event_data();
        let event = match &outcome {
            JobOutcome::Completed => "BLOCK_JOB_COMPLETED",
            JobOutcome::Cancelled => {
                self.error = Some("Operation canceled".to_owned());
                "BLOCK_JOB_CANCELLED"
            }
            JobOutcome::Failed(error) => {
                data["error"] = error.as_str().into();
                self.error = Some(error.clone());
                "BLOCK_JOB_COMPLETED"
            }
        };
        self.outcome = Some(outcome);
        self.disks = None;
        if self.is_block_job() {
            events.emit(event, data);
        }
        self.set_status(JobStatus::Concluded, events);
    }

    /// Whether what was copied becomes clean in its bitmap, although the job has not succeeded, whose end flushes the target.
    pub fn clears_bitmap_after_failure(&self) -> bool {
        let is_always = |(_, mode): &(BitmapUse, BitmapMode)| *mode == BitmapMode::Always;
        self.outcome != Some(JobOutcome::Completed) && self.bitmap.as_ref().is_some_and(is_always)
    }

    /// Keeps all that is dirty in its bitmap: what was copied may be lost.
    pub fn keep_bitmap_dirty(&mut self, error: &str) {
        tracing::warn!(
            job = self.id,
            error,
            "the target was not flushed, so its bitmap keeps what is dirty"
        );
        if let Some((_, mode)) = &mut self.bitmap {
            *mode = BitmapMode::Never;
        }
    }

    /// Ends the use of its bitmap: what was copied is clean if the mode says so.
    pub fn end_bitmap_use(&mut self, succeeded: bool) {
        let Some((bitmap, mode)) = self.bitmap.take() else {
            return;
        };
        let clears = match mode {
            BitmapMode::Never => false,
            BitmapMode::OnSuccess => succeeded,
            BitmapMode::Always => true,
        };
        if clears && let JobWork::Copy(copy) = &self.work {
            bitmap.end_successor(copy.pending_ranges());
        }
    }

    /// Whether it uses a node: as one of its disks, or below one.
    fn uses_node(&self, node: &Node) -> bool {
        let mut nodes = self.disks.iter().flat_map(JobDisks::nodes);
        nodes.any(|disk| disk.leads_through(node))
    }

    /// Whether a node is one of its disks, or above one.
    fn is_below(&self, node: &Node) -> bool {
        let mut nodes = self.disks.iter().flat_map(JobDisks::nodes);
        nodes.any(|disk| node.leads_through(disk))
    }

    /// The error for a node that it uses.
    fn busy_error(&self, node: &Node) -> BoxError {
        format!(
            "Node '{}' is busy: block device is in use by block job: {} '{}'",
            node.name(),
            self.type_name(),
            self.id
        )
        .into()
    }
}

impl DaemonObjects {
    /// Adds a job that was created.
    pub fn add_job(&mut self, job: Job) {
        job.emit_status(&self.events);
        self.jobs.push(job);
    }

    /// All jobs begin to end, for the shutdown: nothing is copied or created any more, and what is in flight does not hang.
    pub fn begin_stop_jobs(&mut self) {
        for job in &mut self.jobs {
            job.abort_work();
            if let Some(copier) = &job.copier {
                copier.begin_stop();
            }
        }
    }

    /// Cancels all jobs, for the shutdown: waits for their requests in flight.
    pub fn cancel_jobs_and_wait(&mut self) {
        self.begin_stop_jobs();
        for job in &mut self.jobs {
            if let Some(copier) = job.copier.take() {
                copier.stop();
            }
            if let Some(disks) = &job.disks {
                disks.source.remove_copy_filter();
                if job.clears_bitmap_after_failure() {
                    // A flush may take longer than there is time.
                    job.keep_bitmap_dirty("the daemon ends");
                }
                job.conclude(JobOutcome::Cancelled, &self.events);
            }
        }
        self.jobs.clear();
    }

    /// Whether a job has this id.
    pub fn has_job(&self, id: &str) -> bool {
        self.jobs.iter().any(|job| job.id == id)
    }

    /// A job that an iothread works for, or will: until its disks are free.
    pub fn id_of_job_on_iothread(&self, iothread: &str) -> Option<&str> {
        let mut jobs = self.jobs.iter().filter(|job| job.disks.is_some());
        let found = jobs.find(|job| job.iothread == iothread);
        found.map(|job| job.id.as_str())
    }

    /// The nodes that jobs copy.
    pub fn sources_of_jobs(&self) -> Vec<Arc<Node>> {
        let disks = self.jobs.iter().flat_map(|job| &job.disks);
        disks.map(|disks| disks.source.clone()).collect()
    }

    /// Whether an export, or a job other than this one, uses the disk below a node.
    pub fn is_disk_used_besides_job(&self, node: &Node, number: u64) -> bool {
        let mut exported = self.exports.iter().flat_map(|export| &export.disks);
        let jobs = self.jobs.iter().filter(|job| job.number != number);
        let mut of_jobs = jobs.flat_map(|job| &job.disks).flat_map(JobDisks::nodes);
        exported.any(|disk| disk.node.get().shares_disk_with(node))
            || of_jobs.any(|other| other.shares_disk_with(node))
    }

    /// Refuses a node that a job uses.
    pub fn check_not_used_by_job(&self, node: &Node) -> Result<(), BoxError> {
        match self.jobs.iter().find(|job| job.uses_node(node)) {
            Some(job) => Err(job.busy_error(node)),
            None => Ok(()),
        }
    }

    /// Refuses a node for a new job that another job uses, or that leads to a disk of another job.
    pub fn check_free_for_job(&self, node: &Node) -> Result<(), BoxError> {
        self.check_not_used_by_job(node)?;
        let above = self.jobs.iter().find(|job| job.is_below(node));
        above.map_or(Ok(()), |job| Err(job.busy_error(node)))
    }

    /// Refuses a bitmap that would begin to record on a node to which a job writes, since routes of jobs are not exchanged.
    pub fn check_not_written_by_job(&self, node: &Node) -> Result<(), BoxError> {
        let writes = |job: &&Job| {
            let mut disks = job.disks.iter();
            disks.any(|disks| disks.target.leads_through(node))
        };
        match self.jobs.iter().find(writes) {
            Some(job) => Err(job.busy_error(node)),
            None => Ok(()),
        }
    }
}
