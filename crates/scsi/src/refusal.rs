//! The status of a command that is refused before it is executed: CHECK CONDITION with sense data, or RESERVATION CONFLICT.

use crate::sense::Sense;

/// The status of a command that is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalStatus {
    /// CHECK CONDITION.
    Sense(Sense),
    /// RESERVATION CONFLICT.
    Conflict,
}

impl From<Sense> for RefusalStatus {
    fn from(sense: Sense) -> Self {
        RefusalStatus::Sense(sense)
    }
}
