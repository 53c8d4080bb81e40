//! `AdmitTimeAndKind`: the time at which a request was admitted, and the kind of the request, packed into one number.

use crate::queue::RequestKind;

/// The time at which a request was admitted, and its kind, in one number, which the requests of a
/// [group](crate::queue::CompletionGroup) have in common. The kind is in the lowest bits of the time. Times of a queue never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct AdmitTimeAndKind(u64);

impl AdmitTimeAndKind {
    const KIND: u64 = 3;

    /// The time of requests that are admitted at `ticks`.
    #[must_use]
    pub fn from_ticks(ticks: u64) -> Self {
        AdmitTimeAndKind(ticks & !Self::KIND)
    }

    /// The next later time, for any kind.
    #[must_use]
    pub fn next_tick(self) -> Self {
        AdmitTimeAndKind((self.0 | Self::KIND) + 1)
    }

    /// The same time with this kind.
    #[inline]
    #[must_use]
    pub fn with_kind(self, kind: RequestKind) -> Self {
        AdmitTimeAndKind(self.0 | kind as u64)
    }

    /// The kind of the request, see [`with_kind`](Self::with_kind).
    #[inline]
    #[must_use]
    pub fn kind(self) -> RequestKind {
        RequestKind::ALL[(self.0 & Self::KIND) as usize]
    }

    /// The time in ticks.
    #[inline]
    #[must_use]
    pub fn ticks(self) -> u64 {
        self.0 & !Self::KIND
    }

    /// The ticks from then to `now`, never negative although the clocks of two processors may differ a little.
    #[inline]
    #[must_use]
    pub fn ticks_until(self, now: u64) -> u64 {
        now.saturating_sub(self.ticks())
    }
}
