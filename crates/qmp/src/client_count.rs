//! Number of connected clients of a monitor, counted as they come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of clients that are connected to a monitor.
#[derive(Debug, Default)]
pub struct ClientCount(Arc<AtomicUsize>);

impl ClientCount {
    /// The number of clients that are connected now.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more client, as long as the result is kept.
    pub(crate) fn add_client(&self) -> CountedClient {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountedClient(self.0.clone())
    }

    /// Another reference to the same count.
    pub(crate) fn share(&self) -> Self {
        ClientCount(self.0.clone())
    }
}

/// A client in the count of its monitor, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedClient(Arc<AtomicUsize>);

impl Drop for CountedClient {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
