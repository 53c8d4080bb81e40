//! The result of an admission: why a queue has stopped taking requests from its ring.

/// The result of an admission: why it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionEnd {
    /// The ring is empty.
    Drained,
    /// The budget is used up and there may be more.
    Budget,
    /// The device admits nothing until an event arrives.
    Waits,
    /// A disk has no room for more requests until a completion.
    Stalled,
}
