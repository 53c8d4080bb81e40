//! The settings of a copier, and its reports to its job.

use block::CopyFailure;
use iothread::{ErrorAction, OnError};

/// What a copier copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopierWork {
    /// All that is pending, once.
    All,
    /// Nothing: the filter copies what guests change, until the job is cancelled.
    OnlyChanges,
    /// All that is pending, again and again, until it is stopped.
    Mirror,
}

/// Settings of a copier.
pub struct CopierSettings {
    /// What becomes of an error of the source.
    pub on_source_error: OnError,
    /// What becomes of an error of the target.
    pub on_target_error: OnError,
    /// The most parts that are copied at once.
    pub max_workers: usize,
    /// The most bytes of a part that is copied.
    pub max_chunk: u64,
    /// Parts are cloned if that is possible.
    pub clones: bool,
    /// What is copied.
    pub work: CopierWork,
}

/// A report of a copier to its job.
pub enum CopierReport {
    /// A part could not be copied. With [`ErrorAction::Stop`] the copier has paused itself.
    Failed(CopyFailure, ErrorAction),
    /// A mirror: the target is almost the same, and flushed.
    Ready,
    /// A mirror that is to end: nothing is pending, and the target is flushed.
    InSync,
    /// Everything is copied and flushed, or the copier has stopped after an error.
    Ended(Result<(), CopyFailure>),
}
