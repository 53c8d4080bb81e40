//! Saves and restores a device's state for a live upgrade, beyond its options and units: configured sizes and pending events.
//!
//! Queues are stopped then, so nothing is in flight; the transport hands over the accepted features.

use std::sync::atomic::Ordering;

use crate::device::{Device, lock_ignoring_poison};
use crate::unit_event::{PendingEvents, UnitEvent};

/// State of a device that a driver relies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// `sense_size` of the configuration space.
    pub sense_bytes: u32,
    /// `cdb_size`.
    pub cdb_bytes: u32,
    /// Unreported events, the oldest first.
    pub events: Vec<UnitEvent>,
    /// Whether events were dropped for lack of room.
    pub missed: bool,
}

impl Device {
    /// Its state, for the process that takes over.
    #[must_use]
    pub fn save_state(&self) -> DeviceState {
        let events = lock_ignoring_poison(&self.events);
        DeviceState {
            sense_bytes: self.sense_bytes.load(Ordering::Relaxed),
            cdb_bytes: self.cdb_bytes.load(Ordering::Relaxed),
            events: events.pending.iter().copied().collect(),
            missed: events.missed,
        }
    }

    /// Restores the state of another process's device. No queue runs.
    pub fn restore_state(&self, handed: &DeviceState) {
        self.sense_bytes
            .store(handed.sense_bytes, Ordering::Relaxed);
        self.cdb_bytes.store(handed.cdb_bytes, Ordering::Relaxed);
        *lock_ignoring_poison(&self.events) = PendingEvents {
            pending: handed.events.iter().copied().collect(),
            missed: handed.missed,
        };
    }
}
