//! A controller that another process goes on with: what of it is neither in its options nor its units'.
//!
//! Queues are stopped then, so nothing is in flight; what the driver has chosen among the features the transport says.

use std::sync::atomic::Ordering;

use crate::device::{Device, lock};
use crate::event::{Event, Events};

/// What a driver would miss of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// `sense_size` of the configuration space.
    pub sense_bytes: u32,
    /// `cdb_size`.
    pub cdb_bytes: u32,
    /// What it does not know yet, the oldest first.
    pub events: Vec<Event>,
    /// There was no room for some.
    pub missed: bool,
}

impl Device {
    /// How it stands.
    #[must_use]
    pub fn hand_over(&self) -> DeviceState {
        let events = lock(&self.events);
        DeviceState {
            sense_bytes: self.sense_bytes.load(Ordering::Relaxed),
            cdb_bytes: self.cdb_bytes.load(Ordering::Relaxed),
            events: events.pending.iter().copied().collect(),
            missed: events.missed,
        }
    }

    /// Stands as another one did. No queue runs.
    pub fn take_over(&self, handed: &DeviceState) {
        self.sense_bytes
            .store(handed.sense_bytes, Ordering::Relaxed);
        self.cdb_bytes.store(handed.cdb_bytes, Ordering::Relaxed);
        *lock(&self.events) = Events {
            pending: handed.events.iter().copied().collect(),
            missed: handed.missed,
        };
    }
}
