//! Refusals: the end of a command that is not carried out.

use crate::sense::Sense;

/// Why.
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
