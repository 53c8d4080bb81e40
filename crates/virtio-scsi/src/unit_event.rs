//! Events of units (added, removed, resized), their layout, and the list of those that were not reported to the driver yet:
//! VIRTIO 1.3, section 5.6.6.3.

use std::collections::VecDeque;

use crate::address::Address;
use crate::wire::{
    EVENT_NONE, EVENT_PARAM_CHANGE, EVENT_TRANSPORT_RESET, EVENTS_MISSED, EventInfo,
    FEATURE_CHANGE, FEATURE_HOTPLUG, REASON_CAPACITY, REASON_REMOVED, REASON_RESCAN,
};

/// Limit of events that wait for a buffer. Beyond it the driver gets the flag that events were missed, and rescans.
const MAX_PENDING: usize = 64;

/// A change of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitEvent {
    /// It was added.
    Added(Address),
    /// It was removed.
    Removed(Address),
    /// It was resized.
    Resized(Address),
}

impl UnitEvent {
    /// The feature that a driver accepts to get this event.
    pub(crate) fn required_feature(self) -> u32 {
        match self {
            UnitEvent::Added(_) | UnitEvent::Removed(_) => FEATURE_HOTPLUG,
            UnitEvent::Resized(_) => FEATURE_CHANGE,
        }
    }

    /// The event in the layout of a buffer.
    fn to_info(self) -> EventInfo {
        let (event, address, reason) = match self {
            UnitEvent::Added(address) => (EVENT_TRANSPORT_RESET, address, REASON_RESCAN),
            UnitEvent::Removed(address) => (EVENT_TRANSPORT_RESET, address, REASON_REMOVED),
            UnitEvent::Resized(address) => (EVENT_PARAM_CHANGE, address, REASON_CAPACITY),
        };
        EventInfo {
            event,
            lun: address.encode(),
            reason,
        }
    }
}

/// Events that were not reported to the driver yet.
#[derive(Debug, Default)]
pub(crate) struct PendingEvents {
    pub pending: VecDeque<UnitEvent>,
    pub missed: bool,
}

impl PendingEvents {
    /// Adds an event. Beyond the limit it is only noted that events were missed.
    pub fn push(&mut self, event: UnitEvent) {
        if self.pending.len() < MAX_PENDING {
            self.pending.push_back(event);
        } else {
            self.missed = true;
        }
    }

    /// Whether there is nothing to report: neither an event nor that some were missed.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && !self.missed
    }

    /// Removes the oldest event, in the layout of a buffer.
    pub fn pop_as_info(&mut self) -> Option<EventInfo> {
        if self.is_empty() {
            return None;
        }
        let mut info = self.pending.pop_front().map_or(
            EventInfo {
                event: EVENT_NONE,
                lun: [0; 8],
                reason: 0,
            },
            UnitEvent::to_info,
        );
        if std::mem::take(&mut self.missed) {
            info.event |= EVENTS_MISSED;
        }
        Some(info)
    }
}
