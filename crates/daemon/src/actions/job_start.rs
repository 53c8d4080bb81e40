//! The start of jobs that copy disks.
//!
//! A job exists as soon as its disks are reserved. Its transaction may wait for guests' requests, and these for the target of the job:
//! until it is carried out, clients see the job as `created`, and can cancel it.

use std::sync::Arc;

use block::Node;
use block::dirty_bitmap::BitmapUse;
use copier::Copier;
use iothread::IoStatus;

use super::backup::JobPlan;
use crate::control::{MainThread, run_on_main_thread};
use crate::state::DaemonObjects;
use crate::state::job::{Job, JobDisks, JobOutcome};
use crate::state::job_status::JobStatus;
use crate::state::job_work::JobWork;

impl JobPlan {
    /// The job, which has not started.
    pub(super) fn new_job(&self, group: Option<u64>) -> Job {
        Job {
            id: self.id.clone(),
            number: self.number,
            status: JobStatus::Created,
            auto_finalize: self.auto_finalize,
            auto_dismiss: self.auto_dismiss,
            group,
            disks: Some(JobDisks::new(self.source.clone(), self.target.clone())),
            work: JobWork::Copy(self.copy.clone()),
            control: self.control.clone(),
            is_starting: true,
            copier: None,
            iothread: self.iothread.id().to_owned(),
            bitmap: None,
            mirror: self.mirror,
            io_status: IoStatus::Ok,
            error: None,
            outcome: None,
        }
    }
}

impl DaemonObjects {
    /// Removes jobs whose transaction has failed.
    pub(super) fn remove_unstarted_jobs(&mut self, numbers: &[u64]) {
        let is_unstarted = |job: &Job| numbers.contains(&job.number);
        for job in self.jobs.iter_mut().filter(|job| is_unstarted(job)) {
            job.set_status(JobStatus::Null, &self.events);
        }
        self.jobs.retain(|job| !is_unstarted(job));
    }
}

impl MainThread {
    /// Starts a job whose filter is on all routes, and whose moment has come; or ends it, if it has failed or was cancelled meanwhile.
    pub fn start_job(&mut self, plan: JobPlan, bitmap: Option<BitmapUse>) {
        let number = plan.number;
        let objects = &mut self.objects;
        let guests = objects.queues_of_node(&plan.source);
        let Some(job) = objects.jobs.iter_mut().find(|job| job.number == number) else {
            return;
        };
        job.is_starting = false;
        job.bitmap = bitmap.zip(plan.bitmap.map(|bitmap| bitmap.mode));
        if job.outcome.is_some() {
            return self.end_work_of_job(number);
        }
        tracing::info!(
            job = plan.id,
            source = plan.source.name(),
            target = plan.target.name(),
            "job started"
        );
        job.set_status(JobStatus::Running, &objects.events);
        // A client may have paused it.
        job.set_status(job.working_status(), &objects.events);
        plan.control.guests.set(guests);
        let sender = self.message_sender.clone();
        let copier = Copier::new(
            (&plan.source, &plan.target),
            &plan.copy,
            plan.settings,
            &plan.control,
            move |report| {
                run_on_main_thread(&sender, move |control| {
                    control.on_copier_report(number, report);
                });
            },
        );
        let node = Node::new_copier(&plan.id, &plan.source, &plan.target, &plan.copy);
        let started = plan
            .iothread
            .start_socket_device(Box::new(copier), vec![node]);
        match started {
            Ok(handle) => job.copier = Some(Arc::new(handle)),
            Err(stopped) => {
                let outcome = JobOutcome::Failed(stopped.to_string());
                self.begin_end_of_job(number, outcome);
            }
        }
    }
}
