//! A ring with its driver, and the messages to its queue.

use std::sync::{Arc, Mutex};

use virtio_scsi::{MessagePort, QueueMessage};
use virtqueue::RingFeatures;

use super::SIZE;
use crate::driver::Driver;
use crate::guest::Memory;
use crate::observed::ObservedQueue;

/// What was sent to a queue and not handled yet.
#[derive(Default)]
pub struct PendingMessages(Mutex<Vec<QueueMessage>>);

impl MessagePort for PendingMessages {
    fn send(&self, message: QueueMessage) {
        self.0.lock().expect("one thread").push(message);
    }
}

impl PendingMessages {
    pub fn take(&self) -> Vec<QueueMessage> {
        std::mem::take(&mut *self.0.lock().expect("one thread"))
    }
}

/// A ring with its driver.
pub struct Ring {
    pub driver: Driver,
    pub ring: ObservedQueue,
    pub mail: Arc<PendingMessages>,
    pub is_broken: bool,
}

impl Ring {
    pub fn new(index: u64, features: RingFeatures, memory: &Memory) -> Self {
        let mut driver = Driver::new(index, SIZE, features);
        Ring {
            ring: ObservedQueue::new(driver.start(memory), memory),
            driver,
            mail: Arc::default(),
            is_broken: false,
        }
    }
}
