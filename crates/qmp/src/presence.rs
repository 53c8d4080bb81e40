//! Client count of a monitor.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many clients a monitor has.
#[derive(Debug, Default)]
pub struct Presence(Arc<AtomicUsize>);

impl Presence {
    /// The clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// For one more client, as long as it is kept.
    pub(crate) fn seat(&self) -> Seat {
        self.0.fetch_add(1, Ordering::Relaxed);
        Seat(self.0.clone())
    }

    /// The same monitor.
    pub(crate) fn share(&self) -> Self {
        Presence(self.0.clone())
    }
}

/// What a client has while it is connected.
#[derive(Debug)]
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
