//! Phases of a measurement: a word that the conductor writes, and workers read.

use std::sync::atomic::{AtomicU8, Ordering};

/// Where a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Load that does not count.
    WarmUp,
    /// Load that counts.
    Measure,
    /// No more requests; those in flight are waited for.
    Stop,
}

/// What the conductor tells the workers.
#[derive(Debug, Default)]
pub(super) struct Phases(AtomicU8);

impl Phases {
    /// Now.
    #[inline]
    pub fn now(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }
}
