//! The job of `blockdev-create`: a thread creates an image.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use block::{ImageId, NewImage, NewImageError};
use copier::CopierControl;
use iothread::IoStatus;

use super::backup::check_job_id;
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::errno_text::errno_text;
use crate::error::BoxError;
use crate::state::job::{Job, JobOutcome};
use crate::state::job_status::JobStatus;
use crate::state::job_work::JobWork;

impl MainThread {
    /// Starts a job that creates an image. It fails with the error of options that cannot be used.
    pub fn start_creating_image(
        &mut self,
        id: &str,
        image: Result<NewImage, String>,
    ) -> Result<(), BoxError> {
        let objects = &mut self.objects;
        check_job_id(objects, id)?;
        let number = objects.job_count;
        objects.job_count += 1;
        let cancelled = Arc::new(AtomicBool::new(false));
        objects.add_job(Job {
            id: id.to_owned(),
            number,
            status: JobStatus::Created,
            auto_finalize: true,
            auto_dismiss: false,
            group: None,
            work: JobWork::Create(cancelled.clone()),
            disks: None,
            control: Arc::new(CopierControl::default()),
            is_starting: false,
            copier: None,
            iothread: String::new(),
            bitmap: None,
            mirror: None,
            io_status: IoStatus::Ok,
            error: None,
            outcome: None,
        });
        tracing::info!(job = id, ?image, "job started");
        if let Some(job) = objects.jobs.last_mut() {
            job.set_status(JobStatus::Running, &objects.events);
        }
        // Their locks say the same, unless they have none: nodes that are inactive, or have `locking=off`.
        let nodes = objects.nodes.iter().map(|open| &open.node);
        let in_use: Vec<(String, ImageId)> = nodes
            .filter_map(|node| Some((node.name().to_owned(), node.image_id()?)))
            .collect();
        self.spawn_command_thread(
            format!("create {id}"),
            // It ends soon: the shutdown cancels it.
            CommandOnShutdown::Wait,
            move || Ok(create(image, &in_use, &cancelled)),
            move |control, outcome| {
                let outcome = outcome.unwrap_or_else(|error| JobOutcome::Failed(error.text));
                control.begin_end_of_job(number, outcome);
                control.on_job_work_ended(number);
            },
        );
        Ok(())
    }
}

/// Creates the image, and waits for that.
fn create(
    image: Result<NewImage, String>,
    in_use: &[(String, ImageId)],
    cancelled: &AtomicBool,
) -> JobOutcome {
    let image = match image {
        Ok(image) => image,
        Err(error) => return JobOutcome::Failed(error),
    };
    match image.create(in_use, cancelled) {
        Ok(()) => JobOutcome::Completed,
        Err(NewImageError::Cancelled) => JobOutcome::Cancelled,
        Err(NewImageError::Failed { what, error }) => {
            JobOutcome::Failed(format!("{what}: {}", errno_text(&error)))
        }
        Err(refused) => JobOutcome::Failed(refused.to_string()),
    }
}
