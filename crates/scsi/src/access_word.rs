//! One word that says whether a read or write may go ahead without a further look.
//!
//! Reads and writes of all queues pass here, on different threads: they read this word and nothing else
//! of a unit that ever changes, but for its size. Whoever changes something unusual computes the word anew, with
//! the unit locked.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::nexus::Nexus;

/// The initiators share 16 bits of each kind: who is number 16 above another may have to take the long
/// way with it, and finds there that nothing is wrong.
const NEXUS_BITS: u16 = 16;

const READ_ONLY: u64 = 1 << 0;
const STOPPED: u64 = 1 << 1;
/// Every write is stable when it completes.
const WRITE_THROUGH: u64 = 1 << 2;
const DESCRIPTOR_SENSE: u64 = 1 << 3;

/// Something that an initiator must be told first.
const ATTENTION_SHIFT: u32 = 16;
/// Somebody else's reservation may forbid its reads, or its writes.
const READS_SHIFT: u32 = 32;
const WRITES_SHIFT: u32 = 48;

/// A value of the word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessWord(u64);

impl AccessWord {
    /// One for each bit that they have.
    pub fn slots() -> impl Iterator<Item = Nexus> {
        (0..NEXUS_BITS).map(Nexus)
    }

    fn set(&mut self, bit: u64, on: bool) {
        if on {
            self.0 |= bit;
        }
    }

    pub fn read_only(&mut self, on: bool) {
        self.set(READ_ONLY, on);
    }

    pub fn stopped(&mut self, on: bool) {
        self.set(STOPPED, on);
    }

    pub fn write_through(&mut self, on: bool) {
        self.set(WRITE_THROUGH, on);
    }

    pub fn descriptor_sense(&mut self, on: bool) {
        self.set(DESCRIPTOR_SENSE, on);
    }

    pub fn attention(&mut self, nexus: Nexus, on: bool) {
        self.set(bit(nexus, ATTENTION_SHIFT), on);
    }

    /// A reservation is in the way of its reads, or of its writes.
    pub fn blocked(&mut self, nexus: Nexus, reads: bool, writes: bool) {
        self.set(bit(nexus, READS_SHIFT), reads);
        self.set(bit(nexus, WRITES_SHIFT), writes);
    }

    /// Nothing is unusual for a read, or write.
    #[inline]
    pub fn open(self, nexus: Nexus, write: bool) -> bool {
        let attention = bit(nexus, ATTENTION_SHIFT);
        let closed = if write {
            READ_ONLY | STOPPED | attention | bit(nexus, WRITES_SHIFT)
        } else {
            STOPPED | attention | bit(nexus, READS_SHIFT)
        };
        self.0 & closed == 0
    }

    /// There may be something to tell.
    pub fn has_attention(self, nexus: Nexus) -> bool {
        self.0 & bit(nexus, ATTENTION_SHIFT) != 0
    }

    #[inline]
    pub fn is_write_through(self) -> bool {
        self.0 & WRITE_THROUGH != 0
    }

    #[inline]
    pub fn has_descriptor_sense(self) -> bool {
        self.0 & DESCRIPTOR_SENSE != 0
    }
}

impl Nexus {
    /// Which of the bits it has.
    pub(crate) fn slot(self) -> u16 {
        self.0 % NEXUS_BITS
    }
}

fn bit(nexus: Nexus, shift: u32) -> u64 {
    1 << (u32::from(nexus.slot()) + shift)
}

/// The word.
#[derive(Default)]
pub(crate) struct AtomicAccessWord(AtomicU64);

impl AtomicAccessWord {
    #[inline]
    pub fn read(&self) -> AccessWord {
        AccessWord(self.0.load(Ordering::Acquire))
    }

    pub fn set(&self, word: AccessWord) {
        self.0.store(word.0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_of_one_is_not_in_the_way_of_others() {
        let mut word = AccessWord::default();
        word.attention(Nexus(1), true);
        word.blocked(Nexus(2), false, true);
        word.blocked(Nexus(3), true, true);
        let open = |nexus| {
            (
                word.open(Nexus(nexus), false),
                word.open(Nexus(nexus), true),
            )
        };
        assert_eq!(open(0), (true, true));
        assert_eq!(open(1), (false, false));
        assert_eq!(open(2), (true, false));
        assert_eq!(open(3), (false, false));
        assert_eq!(open(17), (false, false), "shares a bit");
        word.read_only(true);
        assert!(word.open(Nexus(0), false) && !word.open(Nexus(0), true));
        word.stopped(true);
        assert!(!word.open(Nexus(0), false));
    }
}
