//! The status of a command that is refused before it is executed: CHECK CONDITION with sense data, or RESERVATION CONFLICT.

use crate::sense::Sense;

/// The status of a command that is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// CHECK CONDITION.
    Sense(Sense),
    /// RESERVATION CONFLICT.
    Conflict,
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Refusal::Sense(sense)
    }
}
