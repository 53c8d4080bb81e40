//! The statuses of jobs, and the commands that each allows, as in QEMU.

/// The status of a job, as QEMU names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobStatus {
    Created,
    Running,
    Paused,
    /// It is a mirror whose target is almost the same.
    Ready,
    /// The same, and it is paused.
    Standby,
    /// It has done its work, and waits for others of its transaction.
    Waiting,
    /// It waits for `job-finalize`.
    Pending,
    /// It ends after an error, or because it was cancelled.
    Aborting,
    /// It has ended, and waits for `job-dismiss`.
    Concluded,
    Null,
}

impl JobStatus {
    pub fn name(self) -> &'static str {
        match self {
            JobStatus::Created => "created",
            JobStatus::Running => "running",
            JobStatus::Paused => "paused",
            JobStatus::Ready => "ready",
            JobStatus::Standby => "standby",
            JobStatus::Waiting => "waiting",
            JobStatus::Pending => "pending",
            JobStatus::Aborting => "aborting",
            JobStatus::Concluded => "concluded",
            JobStatus::Null => "null",
        }
    }
}

/// A command for a job, which is allowed in some of its statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobVerb {
    Cancel,
    /// Ends a mirror that is ready with a target that is a copy; cancels any other job.
    CancelUnlessReady,
    Pause,
    Resume,
    SetSpeed,
    Complete,
    Finalize,
    Dismiss,
}

impl JobVerb {
    /// QEMU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            JobVerb::Cancel | JobVerb::CancelUnlessReady => "cancel",
            JobVerb::Pause => "pause",
            JobVerb::Resume => "resume",
            JobVerb::SetSpeed => "set-speed",
            JobVerb::Complete => "complete",
            JobVerb::Finalize => "finalize",
            JobVerb::Dismiss => "dismiss",
        }
    }

    pub fn is_allowed_in(self, status: JobStatus) -> bool {
        use JobStatus::{Concluded, Created, Paused, Pending, Ready, Running, Standby, Waiting};
        match self {
            JobVerb::Cancel | JobVerb::CancelUnlessReady => matches!(
                status,
                Created | Running | Paused | Ready | Standby | Waiting | Pending
            ),
            JobVerb::Pause | JobVerb::Resume | JobVerb::SetSpeed => {
                matches!(status, Created | Running | Paused | Ready | Standby)
            }
            JobVerb::Complete => matches!(status, Ready | Standby),
            JobVerb::Finalize => status == Pending,
            JobVerb::Dismiss => status == Concluded,
        }
    }

    /// Whether it makes sense only before the work has ended.
    pub fn needs_work(self) -> bool {
        matches!(self, JobVerb::Pause | JobVerb::Resume | JobVerb::SetSpeed)
    }
}
