//! The time at which a request was admitted.

use crate::queue::Kind;

/// When a request was admitted, and its kind, in one number: what a [group](crate::queue::Group) has in common. (The kind is in the lowest
/// bits of the time.) A later admission of a queue never has an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct AdmitTime(u64);

impl AdmitTime {
    const KIND: u64 = 3;

    /// Of requests that are admitted at `ticks`.
    #[must_use]
    pub fn new(ticks: u64) -> Self {
        AdmitTime(ticks & !Self::KIND)
    }

    /// Later than this one, of whatever kind.
    #[must_use]
    pub fn next(self) -> Self {
        AdmitTime((self.0 | Self::KIND) + 1)
    }

    /// One of this kind among them.
    #[inline]
    #[must_use]
    pub fn of(self, kind: Kind) -> Self {
        AdmitTime(self.0 | kind as u64)
    }

    /// The kind that it is [of](Self::of).
    #[inline]
    #[must_use]
    pub fn kind(self) -> Kind {
        Kind::ALL[(self.0 & Self::KIND) as usize]
    }

    /// When that was.
    #[inline]
    #[must_use]
    pub fn ticks(self) -> u64 {
        self.0 & !Self::KIND
    }

    /// Time since then. The clocks of two processors may differ by a little: never less than nothing.
    #[inline]
    #[must_use]
    pub fn ticks_until(self, now: u64) -> u64 {
        now.saturating_sub(self.ticks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_behind_is_no_eternity() {
        let taken = AdmitTime::new(1007).of(Kind::Unmap);
        assert_eq!(taken.kind(), Kind::Unmap);
        assert_eq!(taken.ticks_until(1000), 0);
        assert_eq!(taken.ticks_until(2004), 1000);
    }
}
