//! The access word of a unit: flags in one atomic number by which a read or write of an initiator finds, without a lock, that
//! it needs no further checks.
//!
//! Reads and writes of all queues, on different threads, read this word and no other state of the unit but its size. A change
//! of the state recomputes the word, with the unit locked.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::nexus::NexusNumber;

/// Initiators share 16 bits of each kind: one whose number is 16 above another's is checked in full as well, which
/// finds no obstacle.
const NEXUS_BITS: u16 = 16;

const READ_ONLY: u64 = 1 << 0;
const STOPPED: u64 = 1 << 1;
/// Every write is stable when it completes.
const WRITE_THROUGH: u64 = 1 << 2;
const DESCRIPTOR_SENSE: u64 = 1 << 3;

/// An initiator has a pending unit attention.
const ATTENTION_SHIFT: u32 = 16;
/// A reservation of another initiator may forbid reads, or writes.
const READS_SHIFT: u32 = 32;
const WRITES_SHIFT: u32 = 48;

/// The value of the word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessWord(u64);

impl AccessWord {
    /// A nexus for each bit.
    pub fn nexus_of_each_bit() -> impl Iterator<Item = NexusNumber> {
        (0..NEXUS_BITS).map(NexusNumber)
    }

    /// Adds a bit on a condition. It is never removed: initiators share bits, and the word is built anew for each change.
    fn add_bit_if(&mut self, on: bool, bit: u64) {
        if on {
            self.0 |= bit;
        }
    }

    pub fn add_read_only_if(&mut self, on: bool) {
        self.add_bit_if(on, READ_ONLY);
    }

    pub fn add_stopped_if(&mut self, on: bool) {
        self.add_bit_if(on, STOPPED);
    }

    pub fn add_write_through_if(&mut self, on: bool) {
        self.add_bit_if(on, WRITE_THROUGH);
    }

    pub fn add_descriptor_sense_if(&mut self, on: bool) {
        self.add_bit_if(on, DESCRIPTOR_SENSE);
    }

    pub fn add_attention_if(&mut self, nexus: NexusNumber, on: bool) {
        self.add_bit_if(on, nexus_mask(nexus, ATTENTION_SHIFT));
    }

    /// Adds that a reservation blocks reads, or writes, of an initiator.
    pub fn add_blocked_accesses(&mut self, nexus: NexusNumber, reads: bool, writes: bool) {
        self.add_bit_if(reads, nexus_mask(nexus, READS_SHIFT));
        self.add_bit_if(writes, nexus_mask(nexus, WRITES_SHIFT));
    }

    /// Whether a read, or write, needs no further checks.
    #[inline]
    pub fn allows_unchecked(self, nexus: NexusNumber, write: bool) -> bool {
        let attention = nexus_mask(nexus, ATTENTION_SHIFT);
        let closed = if write {
            READ_ONLY | STOPPED | attention | nexus_mask(nexus, WRITES_SHIFT)
        } else {
            STOPPED | attention | nexus_mask(nexus, READS_SHIFT)
        };
        self.0 & closed == 0
    }

    /// Whether a unit attention may be pending.
    pub fn may_have_attention(self, nexus: NexusNumber) -> bool {
        self.0 & nexus_mask(nexus, ATTENTION_SHIFT) != 0
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

impl NexusNumber {
    /// The number of its bit.
    pub(crate) fn bit_index(self) -> u16 {
        self.0 % NEXUS_BITS
    }
}

/// The word with only the bit of a nexus, among those that begin at `shift`.
fn nexus_mask(nexus: NexusNumber, shift: u32) -> u64 {
    1 << (u32::from(nexus.bit_index()) + shift)
}

/// The word that threads share.
#[derive(Default)]
pub(crate) struct AtomicAccessWord(AtomicU64);

impl AtomicAccessWord {
    #[inline]
    pub fn load(&self) -> AccessWord {
        AccessWord(self.0.load(Ordering::Acquire))
    }

    pub fn store(&self, word: AccessWord) {
        self.0.store(word.0, Ordering::Release);
    }
}
