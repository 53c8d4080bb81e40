//! The end of an admission.

/// The end of an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The ring is empty.
    Drained,
    /// The budget is used up and there may be more.
    Budget,
    /// The device takes nothing until it is told of an event.
    Waits,
    /// A disk takes no more requests now: come again after a completion.
    Stalled,
}
