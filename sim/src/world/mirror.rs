//! Mirrors: a job copies the disk to another one and follows it, until the guest goes over to the target, or the target is a copy as of
//! the end.
//!
//! Iothreads get the messages that `actions::mirror` of the daemon sends, in their order.

use std::sync::atomic::Ordering;

use block::{BlockCopy, MirrorMode};
use copier::CopierWork;
use iothread::{Message, SocketDeviceCommand};

use crate::failure::Failure;
use crate::model::SECTOR;
use crate::nodes::Nodes;
use crate::plan::Mirror;

use super::jobs::{Job, JobStep, MirrorJob, Outcome};
use super::{Waits, World};

impl World {
    /// A mirror of a disk that exports use without filters begins.
    pub(super) fn begin_mirror(&mut self, how: Mirror) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        let is_possible = daemon.nodes.are_unfiltered() && !self.config.filters.marks;
        if !self.config.jobs || self.job.is_some() || !is_possible {
            return;
        }
        let size = self.resize_target();
        let copy = BlockCopy::new_mirror(size, false, |_| ()).expect("there is memory");
        let (target, use_of_target) = daemon.nodes.open_target(&self.config, &self.kernel);
        let mode = match how.blocks_writes {
            true => MirrorMode::Write,
            false => MirrorMode::Mark,
        };
        daemon.nodes.opening().set_mirror(&copy, &target, mode);
        self.guest.borrow_mut().is_served_by_tasks();
        self.begin_wait(Waits::Job(JobStep::FilterAdded, daemon.set_node()));
        let mut job = Job::new(copy, target, CopierWork::Mirror, how.on_error, how.workers);
        job.mirror = Some(MirrorJob {
            how,
            use_of_target,
            is_ready: false,
            finishes: false,
            has_switched_over: false,
        });
        self.job = Some(job);
        self.note_new_routes();
    }

    fn mirror(&mut self) -> Option<&mut MirrorJob> {
        self.job.as_mut()?.mirror.as_mut()
    }

    /// Whether there is a mirror.
    pub(super) fn has_mirror(&self) -> bool {
        let mut jobs = self.job.iter();
        jobs.any(|job| job.mirror.is_some())
    }

    /// Whether the guest has gone over to the target of a mirror that has not ended: requests of before use both disks.
    pub(super) fn may_use_both_disks(&mut self) -> bool {
        self.mirror().is_some_and(|mirror| mirror.has_switched_over)
    }

    pub(super) fn mirror_is_ready(&mut self) {
        if let Some(mirror) = self.mirror() {
            mirror.is_ready = true;
        }
    }

    /// A mirror that is ready is to end: all requests are to go by routes that write to both disks. False: there is none.
    pub(super) fn finish_mirror(&mut self) -> bool {
        let (Some(job), Some(daemon)) = (&mut self.job, &self.daemon) else {
            return false;
        };
        let Some(mirror) = &mut job.mirror else {
            return false;
        };
        let may = mirror.is_ready && !mirror.finishes && self.waits.is_none();
        if !may || job.outcome.is_some() {
            return false;
        }
        mirror.finishes = true;
        let source = daemon.nodes.opening();
        source.set_mirror(&job.copy, &job.target, MirrorMode::Finish);
        self.begin_wait(Waits::Job(JobStep::BothWritten, daemon.set_node()));
        self.note_new_routes();
        true
    }

    /// All write to both disks: the copier copies what is left.
    pub(super) fn both_are_written(&mut self) {
        if let Some(job) = &self.job {
            job.control.finishing.store(true, Ordering::Release);
        }
        self.run_copier();
    }

    /// Both disks are the same, and flushed: the mirror ends, if that is possible.
    pub(super) fn mirror_is_in_sync(&mut self) {
        let Some(job) = self.job.as_mut().filter(|job| job.outcome.is_none()) else {
            return;
        };
        let Some(mirror) = &mut job.mirror else {
            return;
        };
        let switches_over = mirror.how.switches_over;
        let ended = match switches_over {
            true => job.copy.try_switch_over(),
            false => job.copy.try_end_in_sync(),
        };
        job.control.awaits_end.store(false, Ordering::Release);
        self.trace
            .say(|| format!("the mirror is in sync, and ends: {ended}"));
        if !ended {
            return self.run_copier();
        }
        job.outcome = Some(Outcome::Completed);
        job.moment = Some(self.guest.borrow().model.moment());
        if switches_over {
            mirror.has_switched_over = true;
            let may_fail = job.may_fail;
            self.kernel.state().switch_over();
            // What the target has failed before may come to the guest only now.
            for read in [true, false].into_iter().filter(|_| may_fail) {
                let (flush, sectors) = (!read, 0..u64::MAX);
                self.failed(&Failure {
                    read,
                    flush,
                    sectors,
                });
            }
        }
    }

    /// Exports go on with the target, if the guest has gone over to it.
    pub(super) fn show_target(&mut self) {
        let (Some(job), Some(daemon)) = (&mut self.job, &mut self.daemon) else {
            return;
        };
        if let Some(mirror) = job.mirror.as_ref().filter(|one| one.has_switched_over) {
            daemon.nodes = Nodes::moved_to(job.target.clone(), mirror.use_of_target.clone());
        }
    }

    /// The copier looks at its control.
    pub(super) fn run_copier(&self) {
        let copier = self.job.as_ref().and_then(|job| job.copier.as_ref());
        if let (Some((place, _)), Some(daemon)) = (copier, &self.daemon) {
            let run = |number| Message::SocketDevice(number, SocketDeviceCommand::Run);
            daemon.send(*place, run);
        }
    }

    /// The target of a new job gets the size of the disk, in bytes.
    pub(super) fn resize_target(&self) -> u64 {
        let mut state = self.kernel.state();
        let size = state.disk().bytes().len();
        state.target().resize(size / SECTOR);
        size as u64
    }
}
