//! The event queue: reports pending events of units in the driver's buffers. VIRTIO 1.3, section 5.6.6.3.

use std::sync::Arc;

use telemetry::queue::AdmissionEnd;
use virtqueue::Chain;

use crate::device::{Device, lock_ignoring_poison};
use crate::error::{AdmitError, RequestError};
use crate::guest_bytes::copy_to_guest;
use crate::messages::MessagePort;
use crate::queue::AdmitMemoryAndTime;
use crate::wire::{EVENT_BYTES, EVENT_LEN};

/// The event queue: buffers of the driver wait in its ring for events.
pub struct EventQueue {
    device: Arc<Device>,
    port: Arc<dyn MessagePort>,
    has_unpublished: bool,
}

impl EventQueue {
    /// A running event queue that `port` leads to, registered with the device.
    #[must_use]
    pub fn new_registered(device: Arc<Device>, port: Arc<dyn MessagePort>) -> Self {
        device.register_event_queue(port.clone());
        EventQueue {
            device,
            port,
            has_unpublished: false,
        }
    }

    /// Whether there are events to report: otherwise buffers stay in the ring.
    #[must_use]
    pub fn has_events_to_report(&self) -> bool {
        self.device.has_events()
    }

    /// Reports events, as far as there are buffers. Without events buffers stay in the ring.
    ///
    /// # Errors
    /// When the guest broke the queue.
    pub fn report_pending_events(
        &mut self,
        ring: &mut virtqueue::Queue,
        batch: AdmitMemoryAndTime<'_>,
        chain: &mut Chain,
    ) -> Result<AdmissionEnd, AdmitError> {
        let mut events = lock_ignoring_poison(&self.device.events);
        if events.is_empty() {
            return Ok(AdmissionEnd::Waits);
        }
        while !events.is_empty() {
            let Some(id) = ring.pop(batch.memory, chain)? else {
                break;
            };
            if chain.writable_len() < EVENT_BYTES as u64 {
                return Err(RequestError::ShortEvent(chain.writable_len()).into());
            }
            if let Some(info) = events.pop_as_info() {
                // SAFETY: the chain was popped with the memory that the batch holds.
                unsafe { copy_to_guest(chain.writable(), &info.to_bytes()) };
            }
            ring.push(id, EVENT_LEN);
            self.has_unpublished = true;
        }
        Ok(AdmissionEnd::Drained)
    }

    /// Whether there are used entries to publish.
    pub fn take_has_unpublished(&mut self) -> bool {
        std::mem::take(&mut self.has_unpublished)
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        self.device.unregister_event_queue(&self.port);
    }
}
