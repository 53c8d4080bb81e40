//! Events for the driver: VIRTIO 1.3, section 5.6.6.3.

use std::collections::VecDeque;
use std::sync::Arc;

use telemetry::queue::Admission;
use virtqueue::Chain;

use crate::address::Address;
use crate::device::{Device, lock};
use crate::error::{AdmitError, RequestError};
use crate::guest_bytes::copy_to;
use crate::port::Port;
use crate::queue::Batch;
use crate::wire::{
    EVENT_BYTES, EVENT_LEN, EVENT_NONE, EVENT_PARAM_CHANGE, EVENT_TRANSPORT_RESET, EVENTS_MISSED,
    EventInfo, FEATURE_CHANGE, FEATURE_HOTPLUG, REASON_CAPACITY, REASON_REMOVED, REASON_RESCAN,
};

/// Events that wait for a buffer of the driver's, at most: after so many it is told that it has missed some, and
/// looks at everything.
const MAX_PENDING: usize = 64;

/// Something that has happened to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is there.
    Added(Address),
    /// It is not any more.
    Removed(Address),
    /// It has another size.
    Resized(Address),
}

impl Event {
    /// Who chose this feature wants to know.
    pub(crate) fn feature(self) -> u32 {
        match self {
            Event::Added(_) | Event::Removed(_) => FEATURE_HOTPLUG,
            Event::Resized(_) => FEATURE_CHANGE,
        }
    }

    fn info(self) -> EventInfo {
        let (event, address, reason) = match self {
            Event::Added(address) => (EVENT_TRANSPORT_RESET, address, REASON_RESCAN),
            Event::Removed(address) => (EVENT_TRANSPORT_RESET, address, REASON_REMOVED),
            Event::Resized(address) => (EVENT_PARAM_CHANGE, address, REASON_CAPACITY),
        };
        EventInfo {
            event,
            lun: address.encode(),
            reason,
        }
    }
}

/// Those that the driver does not know yet.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub pending: VecDeque<Event>,
    pub missed: bool,
}

impl Events {
    pub fn push(&mut self, event: Event) {
        if self.pending.len() < MAX_PENDING {
            self.pending.push_back(event);
        } else {
            self.missed = true;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && !self.missed
    }

    /// The oldest, as it goes into a buffer.
    fn pop(&mut self) -> Option<EventInfo> {
        if self.is_empty() {
            return None;
        }
        let mut info = self.pending.pop_front().map_or(
            EventInfo {
                event: EVENT_NONE,
                lun: [0; 8],
                reason: 0,
            },
            Event::info,
        );
        if std::mem::take(&mut self.missed) {
            info.event |= EVENTS_MISSED;
        }
        Some(info)
    }
}

/// The event queue: its buffers wait for something to happen.
pub struct EventQueue {
    device: Arc<Device>,
    port: Arc<dyn Port>,
    answered: bool,
}

impl EventQueue {
    /// It runs from now on; `port` leads to it.
    #[must_use]
    pub fn new(device: Arc<Device>, port: Arc<dyn Port>) -> Self {
        device.open_event_queue(port.clone());
        EventQueue {
            device,
            port,
            answered: false,
        }
    }

    /// Whether there are events to report: otherwise buffers stay in the ring.
    #[must_use]
    pub fn wants_buffers(&self) -> bool {
        self.device.has_events()
    }

    /// Reports events, as far as there are buffers. Without events buffers stay where they are.
    ///
    /// # Errors
    /// When the guest broke the queue.
    pub fn admit(
        &mut self,
        ring: &mut virtqueue::Queue,
        batch: Batch<'_>,
        chain: &mut Chain,
    ) -> Result<Admission, AdmitError> {
        let mut events = lock(&self.device.events);
        if events.is_empty() {
            return Ok(Admission::Waits);
        }
        while !events.is_empty() {
            let Some(id) = ring.pop(batch.memory, chain)? else {
                break;
            };
            if chain.writable_len() < EVENT_BYTES as u64 {
                return Err(RequestError::ShortEvent(chain.writable_len()).into());
            }
            if let Some(info) = events.pop() {
                // SAFETY: the chain was popped with the memory that the batch holds.
                unsafe { copy_to(chain.writable(), &info.to_bytes()) };
            }
            ring.push(id, EVENT_LEN);
            self.answered = true;
        }
        Ok(Admission::Drained)
    }

    /// Whether there are used entries to publish.
    pub fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.answered)
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        self.device.close_event_queue(&self.port);
    }
}
