//! Jobs: a backup copies the disk to another one as it was at one moment, while the guest goes on. Incremental ones copy what is
//! dirty in a bitmap. [Mirrors](super::mirror) have the same copier.
//!
//! Filter, copier and bitmaps are the program's own. Iothreads get the messages that `actions::transaction` and `actions::jobs` of the
//! daemon send, in their order.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use block::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyExtent, CopyMoment, MAX_COPY_PIECE_BYTES, Node,
    backup_cluster_bytes,
};
use copier::{Copier, CopierControl, CopierReport, CopierSettings, CopierWork};
use iothread::{Message, OnError};

use crate::clock;
use crate::daemon::Place;
use crate::kernel::Kernel;
use crate::model::{Moment, SECTOR};
use crate::nodes::Use;
use crate::plan::{Backup, JobEvent, Mirror};

use super::{Waits, World};

/// So many steps a job may need.
const ROUNDS: u32 = 2000;

/// A job.
pub(super) struct Job {
    /// Only what is dirty is copied.
    limited: bool,
    /// A client copies the disk as of the moment.
    is_pulled: bool,
    /// It uses the bitmap that records.
    uses_bitmap: bool,
    /// What it has copied becomes clean also if it fails.
    always: bool,
    /// The flag that its moment sets.
    begins: Arc<CopyMoment>,
    work: CopierWork,
    on_error: OnError,
    workers: u8,
    pub copy: Arc<BlockCopy>,
    pub target: Arc<Node>,
    pub control: Arc<CopierControl>,
    pub copier: Option<(Place, Receiver<CopierReport>)>,
    /// What the copy may hold, since the moment has come.
    pub moment: Option<Moment>,
    /// A disk or a worker has failed something since it began.
    pub may_fail: bool,
    pub outcome: Option<Outcome>,
    ends: bool,
    pub mirror: Option<MirrorJob>,
}

/// What a mirror has beside other jobs.
pub(super) struct MirrorJob {
    pub how: Mirror,
    pub use_of_target: Use,
    pub is_ready: bool,
    /// It is to end.
    pub finishes: bool,
    /// The guest uses the target.
    pub has_switched_over: bool,
}

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed,
    Failed,
    Cancelled,
}

/// What a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobStep {
    /// All requests go by routes with the filter.
    FilterAdded,
    /// What was under way at the moment is done.
    EarlierDone,
    /// All requests go by routes that write to both disks.
    BothWritten,
    /// All requests go by routes without the filter.
    FilterRemoved,
}

impl Job {
    fn has_switched_over(&self) -> bool {
        let mut mirrors = self.mirror.iter();
        mirrors.any(|mirror| mirror.has_switched_over)
    }

    /// One whose filter is on new routes.
    pub fn new(
        copy: Arc<BlockCopy>,
        target: Arc<Node>,
        work: CopierWork,
        on_error: OnError,
        workers: u8,
    ) -> Self {
        Job {
            limited: false,
            is_pulled: false,
            uses_bitmap: false,
            always: false,
            begins: Arc::default(),
            work,
            on_error,
            workers,
            copy,
            target,
            control: Arc::default(),
            copier: None,
            moment: None,
            may_fail: false,
            outcome: None,
            ends: false,
            mirror: None,
        }
    }
}

/// The disk as of the moment of its backup, as clients see it, and a copy of all of it; `None`: the backup has failed.
fn disk_as_of_moment(opening: &Arc<Node>) -> Option<(Arc<Node>, Arc<BlockCopy>)> {
    let shown = Node::new_snapshot("moment", opening).ok()?;
    let size = shown.size();
    let now = Arc::<CopyMoment>::default();
    now.begin();
    let copy = BlockCopy::new(size, COPY_CLUSTER_BYTES, now, CopyExtent::All, |_| ());
    Some((shown, copy.expect("there is memory")))
}

/// Whether the target is as the disk may have been at the moment, also after a power failure.
fn check_target(kernel: &Kernel, moment: &Moment) -> Result<(), String> {
    let mut state = kernel.state();
    let target = state.target();
    for (bytes, when) in [
        (target.bytes(), "of the job"),
        (target.stable_bytes(), "of the job, after a power failure"),
    ] {
        for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR)) {
            let checked = moment.check(sector, bytes);
            checked.map_err(|wrong| format!("in the target {when}: {wrong}"))?;
        }
    }
    Ok(())
}

impl World {
    pub(super) fn job_event(&mut self, event: JobEvent) {
        match event {
            JobEvent::Backup(backup) => self.begin_backup(backup),
            JobEvent::Mirror(how) => self.begin_mirror(how),
            JobEvent::Complete => {
                self.finish_mirror();
            }
            JobEvent::Pause => {
                if let Some(job) = &self.job {
                    job.control.pause();
                }
            }
            JobEvent::Resume => self.resume_job(),
            JobEvent::Finish => self.let_job_end(),
            JobEvent::Cancel => {
                let outcome = Outcome::Cancelled;
                if let Some(job) = &mut self.job
                    && job.copier.is_some()
                {
                    job.outcome.get_or_insert(outcome);
                }
            }
        }
    }

    /// Lets all come to its end that the job needs, if that comes by itself.
    fn let_job_end(&mut self) {
        for _ in 0..ROUNDS {
            let acts = self.waits.is_none() && (self.resume_paused_job() || self.finish_mirror());
            if self.job.is_none() || !acts && !self.machine_works() {
                return;
            }
            self.advance();
        }
    }

    /// Whether there is a job, which uses the node.
    pub(super) fn has_job(&self) -> bool {
        self.job.is_some()
    }

    /// Whether there is a job that uses the bitmap which records.
    pub(super) fn job_uses_bitmap(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.uses_bitmap)
    }

    fn resume_job(&self) {
        let paused = |job: &Job| job.control.resume();
        if self.job.as_ref().is_some_and(paused) {
            self.run_copier();
        }
    }

    /// Whether the job was paused, and is resumed.
    pub(super) fn resume_paused_job(&self) -> bool {
        let paused = |job: &Job| job.control.is_paused();
        let is_paused = self.job.as_ref().is_some_and(paused);
        self.resume_job();
        is_paused
    }

    /// The disk, the target or a worker has failed something.
    pub(super) fn job_may_fail(&mut self) {
        if let Some(job) = &mut self.job {
            job.may_fail = true;
        }
    }

    /// A backup begins: all requests are to go by routes with its filter.
    fn begin_backup(&mut self, backup: Backup) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        if !self.config.jobs || self.job.is_some() {
            return;
        }
        let size = self.resize_target();
        let marks = self.kernel.state().disk().marks.clone();
        let uses_bitmap = backup.bitmap && marks.is_recording();
        let limited = backup.incremental && uses_bitmap && self.base == marks.period();
        let begins = Arc::<CopyMoment>::default();
        let is_pulled = backup.is_pulled();
        let extent = match limited {
            true => CopyExtent::Dirty,
            false if is_pulled => CopyExtent::Changes,
            false => CopyExtent::All,
        };
        let copy = BlockCopy::new(
            size,
            backup_cluster_bytes(size, 512),
            begins.clone(),
            extent,
            |_| (),
        );
        let copy = copy.expect("there is memory");
        let (target, _) = daemon.nodes.open_target(&self.config, &self.kernel);
        let source = daemon.nodes.opening();
        source.set_copy_before_write(&copy, &target);
        self.guest.borrow_mut().is_served_by_tasks();
        self.begin_wait(Waits::Job(JobStep::FilterAdded, daemon.set_node()));
        let work = CopierWork::All;
        self.job = Some(Job {
            limited,
            is_pulled,
            uses_bitmap,
            always: backup.always,
            begins,
            ..Job::new(copy, target, work, backup.on_error, backup.workers)
        });
        self.note_new_routes();
    }

    /// What the job has waited for is there.
    pub(super) fn job_goes_on(&mut self, step: JobStep) {
        match step {
            JobStep::FilterAdded if self.has_mirror() => self.start_copier(),
            JobStep::FilterAdded => self.moment_of_job(),
            JobStep::EarlierDone => self.start_copier(),
            JobStep::BothWritten => self.both_are_written(),
            JobStep::FilterRemoved => self.job_has_ended(),
        }
    }

    /// The moment of the backup comes.
    fn moment_of_job(&mut self) {
        let (Some(job), Some(daemon)) = (&mut self.job, &self.daemon) else {
            return;
        };
        if job.uses_bitmap {
            self.kernel.state().disk().marks.begin_job();
        }
        job.begins.begin();
        job.moment = Some(self.guest.borrow().model.moment());
        self.begin_wait(Waits::Job(JobStep::EarlierDone, daemon.settle()));
    }

    fn start_copier(&mut self) {
        let (Some(job), Some(daemon)) = (&mut self.job, &self.daemon) else {
            return;
        };
        if job.limited {
            let marks = self.kernel.state().disk().marks.clone();
            job.copy
                .limit_to_dirty(|wanted| marks.mark_what_job_copies(wanted));
        }
        let opening = daemon.nodes.opening();
        let pulled = job.is_pulled.then(|| disk_as_of_moment(opening)).flatten();
        let (source, copy) = pulled.unwrap_or_else(|| (opening.clone(), job.copy.clone()));
        let node = Node::new_copier("job", &source, &job.target, &copy);
        let settings = CopierSettings {
            on_source_error: job.on_error,
            on_target_error: job.on_error,
            max_workers: job.workers.into(),
            max_chunk: match job.workers {
                1 => COPY_CLUSTER_BYTES,
                _ => MAX_COPY_PIECE_BYTES,
            },
            clones: true,
            work: job.work,
        };
        let (report, reports) = channel();
        // The job may be gone.
        let report = move |new| drop(report.send(new));
        let disks = (&source, &job.target);
        let copier = Copier::new(disks, &copy, settings, &job.control, report);
        let place = daemon.start_device(0, Box::new(copier), node);
        job.copier = Some((place, reports));
    }

    /// Looks at what copier and filter report.
    pub(super) fn look_at_job(&mut self) {
        let Some(job) = &mut self.job else {
            return;
        };
        let reports = job
            .copier
            .iter()
            .flat_map(|(_, reports)| reports.try_iter());
        let (mut is_ready, mut is_in_sync) = (false, false);
        for report in reports {
            match report {
                CopierReport::Failed(failure, action) => {
                    self.trace
                        .say(|| format!("the job reports {failure:?}: {action:?}"));
                    self.seen.add("job-errors", 1);
                    if !job.may_fail {
                        let wrong = format!("the job reports {failure:?}, and nothing has failed");
                        self.guest.borrow_mut().complain(wrong);
                    }
                }
                CopierReport::Ended(Ok(())) => {
                    job.outcome.get_or_insert(Outcome::Completed);
                }
                CopierReport::Ended(Err(_)) => {
                    job.outcome.get_or_insert(Outcome::Failed);
                }
                CopierReport::Ready => is_ready = true,
                CopierReport::InSync => is_in_sync = true,
            }
        }
        if job.copy.failed_write_copy().is_some() {
            job.outcome.get_or_insert(Outcome::Failed);
        }
        if is_ready {
            self.mirror_is_ready();
        }
        if is_in_sync {
            self.mirror_is_in_sync();
        }
        let may_end = |job: &Job| job.outcome.is_some() && job.copier.is_some() && !job.ends;
        if self.job.as_ref().is_some_and(may_end) && self.waits.is_none() {
            self.begin_end_of_job();
        }
    }

    /// The job has done its work, or has failed: its copier stops.
    fn begin_end_of_job(&mut self) {
        let (Some(job), Some(daemon)) = (&mut self.job, &self.daemon) else {
            return;
        };
        job.ends = true;
        if job.is_pulled && job.outcome == Some(Outcome::Completed) {
            // The client has what it needs. From now on writes that are under way copy what others may have changed.
            let moment = job.moment.take();
            let checked = moment.map_or(Ok(()), |moment| check_target(&self.kernel, &moment));
            job.copy.end();
            if let Err(wrong) = checked {
                self.guest.borrow_mut().complain(wrong);
            }
        }
        if job.outcome != Some(Outcome::Completed) {
            job.copy.end();
        }
        if !job.has_switched_over() {
            daemon.nodes.opening().remove_copy_filter();
        }
        if let Some((place, _)) = job.copier.take() {
            let (reply, answer) = channel();
            daemon.send(place, |number| Message::Stop(number, reply));
            self.begin_wait(Waits::CopierStopped(answer));
        }
    }

    /// All requests are to go by routes without the filter.
    pub(super) fn copier_has_stopped(&mut self) {
        self.show_target();
        let answers = self.daemon.iter().flat_map(|daemon| daemon.set_node());
        self.begin_wait(Waits::Job(JobStep::FilterRemoved, answers.collect()));
        self.note_new_routes();
    }

    fn job_has_ended(&mut self) {
        let Some(mut job) = self.job.take() else {
            return;
        };
        let has_switched_over = job.has_switched_over();
        if job.mirror.is_some() && !has_switched_over {
            self.end_mirror_as_copy(&mut job);
        }
        let marks = self.kernel.state().disk().marks.clone();
        let completed = job.outcome == Some(Outcome::Completed);
        self.trace
            .say(|| format!("the job has ended: {:?}", job.outcome));
        if job.uses_bitmap {
            let clears = completed || job.always;
            let ended = marks.end_job(clears.then(|| job.copy.pending_ranges().collect()));
            if let Err(wrong) = ended {
                self.guest.borrow_mut().complain(wrong);
            }
            if completed {
                self.base = marks.period();
            }
        }
        let kind = match job.outcome {
            Some(Outcome::Completed) if has_switched_over => "switch-overs",
            Some(Outcome::Completed) if job.mirror.is_some() => "mirrored-copies",
            Some(Outcome::Completed) if job.limited => "incremental-backups",
            Some(Outcome::Completed) if job.is_pulled => "pulled-backups",
            Some(Outcome::Completed) => "full-backups",
            _ => "aborted-jobs",
        };
        self.seen.add(kind, 1);
        self.seen.add("waits-for-copies", job.copy.guest_waits());
        let checked = match (job.outcome, job.moment) {
            (Some(Outcome::Completed), Some(moment)) if !has_switched_over => {
                check_target(&self.kernel, &moment)
            }
            (Some(Outcome::Failed), _) if !job.may_fail => {
                Err("the job has failed, and nothing else has".to_owned())
            }
            _ => Ok(()),
        };
        if let Err(wrong) = checked {
            self.guest.borrow_mut().complain(wrong);
        }
    }

    /// A mirror ends as a copy, with what was in flight then.
    fn end_mirror_as_copy(&self, job: &mut Job) {
        let lacks = job.copy.pending_bytes() > 0 || job.copy.failed_write_copy().is_some();
        if job.outcome == Some(Outcome::Completed) && lacks {
            job.outcome = Some(Outcome::Failed);
        }
        self.kernel.state().target().flush_all();
    }

    /// All get new routes to the same disk.
    pub(super) fn note_new_routes(&mut self) {
        self.note_what_waits();
        let throttles = &mut self.guest.borrow_mut().throttles;
        throttles.exchanged(true, clock::now_ns());
    }
}
