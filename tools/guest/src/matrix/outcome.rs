//! The outcome of a cell.

use std::time::Duration;

use super::cell::Cell;

/// A cell that was run, or cannot be.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which one.
    pub cell: Cell,
    /// How it ended.
    pub verdict: Verdict,
    /// From the first boot to the end of the second; zero if there was none.
    pub took: Duration,
}

/// The result of a cell.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Both boots went well.
    Passed(Passed),
    /// Something did not; with the daemon's log and the guest's console.
    Failed(String),
    /// There can be no such guest, for this reason.
    NotApplicable(&'static str),
}

/// What was seen in a cell that passed.
#[derive(Clone, Debug)]
pub struct Passed {
    /// The guest's `uname -r`.
    pub kernel: String,
    /// Files and regions whose checksums were the same at the second boot.
    pub sums: usize,
    /// Whether the guest outlived the daemon.
    pub reconnection: Reconnection,
    /// What the daemon warned of, in both boots.
    pub daemon_warnings: Vec<String>,
}

/// Whether the guest outlived the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnection {
    /// The daemon was killed so many times under the guest's load.
    Survived(u32),
    /// The front-end cannot connect again, for this reason.
    NotApplicable(&'static str),
}

impl Outcome {
    /// Whether it is to be reported as an error.
    #[must_use]
    pub fn failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed(_))
    }
}
