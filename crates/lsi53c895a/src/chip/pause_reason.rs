//! Reasons for a pause of SCRIPTS between two instructions, or within one.

/// Why an instruction pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseReason {
    /// The target requests no phase yet, or no target reselects.
    Bus,
    /// An access to memory is pending.
    Memory,
    /// The run's limit is used up.
    Limit,
    /// An interrupt or a reset ended it.
    Stopped,
}
