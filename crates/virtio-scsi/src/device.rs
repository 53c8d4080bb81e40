//! The device: state that all of its queues share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scsi::{AddError, Nexus, Ports, Reset, Target, TransportId, Unit};

use crate::address::Address;
use crate::cancel::Cancel;
use crate::config::{DEFAULT_CDB_BYTES, DEFAULT_SENSE_BYTES};
use crate::event::{Event, Events};
use crate::port::{Port, ToQueue};
use crate::wire::{FEATURE_CHANGE, FEATURE_HOTPLUG};

/// The one initiator: the guest's driver.
pub(crate) const NEXUS: Nexus = Nexus(0);

/// Queue size of the field's front-ends unless told otherwise: the number of segments that a command may
/// have is announced to fit it.
const USUAL_QUEUE_SIZE: u16 = 128;

/// Queues in front of those for commands: control and events.
pub const FIXED_QUEUES: u16 = 2;

/// The control queue's number.
pub const CONTROL_QUEUE: u16 = 0;

/// The event queue's number.
pub const EVENT_QUEUE: u16 = 1;

/// How a device is made.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Queues for commands, 1 to 1024.
    pub request_queues: u16,
    /// Entries that a queue may have at most, a power of two.
    pub queue_size: u16,
    /// What the guest is called in persistent reservations.
    pub initiator: TransportId,
}

/// Why options cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OptionsError {
    /// None, or too many.
    #[error("num-queues={0}: a controller has 1 to {MAX_REQUEST_QUEUES} queues for commands")]
    Queues(u16),
    /// Not a power of two, or out of range.
    #[error(
        "queue-size={0}: must be a power of two from 2 to {max}", max = virtqueue::MAX_QUEUE_SIZE)]
    QueueSize(u16),
}

/// Most queues for commands: what the field's drivers take.
const MAX_REQUEST_QUEUES: u16 = 1024;

/// What the driver has set in the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub sense: usize,
    pub cdb: usize,
}

/// One virtio-scsi device.
pub struct Device {
    options: DeviceOptions,
    targets: Mutex<BTreeMap<u8, Arc<Target>>>,
    acked: AtomicU64,
    pub(crate) sense_bytes: AtomicU32,
    pub(crate) cdb_bytes: AtomicU32,
    /// Queues for commands that run.
    queues: Mutex<Vec<Arc<dyn Port>>>,
    event_queue: Mutex<Option<Arc<dyn Port>>>,
    pub(crate) events: Mutex<Events>,
    /// Task management functions that are not answered.
    pub(crate) functions: AtomicUsize,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// Without units.
    ///
    /// # Errors
    /// [`OptionsError`].
    pub fn new(options: DeviceOptions) -> Result<Self, OptionsError> {
        let (queues, size) = (options.request_queues, options.queue_size);
        if !(1..=MAX_REQUEST_QUEUES).contains(&queues) {
            return Err(OptionsError::Queues(queues));
        }
        if !size.is_power_of_two() || !(2..=virtqueue::MAX_QUEUE_SIZE).contains(&size) {
            return Err(OptionsError::QueueSize(size));
        }
        Ok(Device {
            options,
            targets: Mutex::default(),
            acked: AtomicU64::new(0),
            sense_bytes: AtomicU32::new(DEFAULT_SENSE_BYTES),
            cdb_bytes: AtomicU32::new(DEFAULT_CDB_BYTES),
            queues: Mutex::default(),
            event_queue: Mutex::default(),
            events: Mutex::default(),
            functions: AtomicUsize::new(0),
        })
    }

    /// How it was made.
    #[must_use]
    pub fn options(&self) -> &DeviceOptions {
        &self.options
    }

    /// Segments of data that one command may have: what a chain as long as the queue has left beside
    /// header and response.
    #[must_use]
    pub fn max_segments(&self) -> u32 {
        u32::from(self.options.queue_size.min(USUAL_QUEUE_SIZE))
            .saturating_sub(2)
            .max(1)
    }

    /// The device's own feature bits. Data in both directions and protection information are not offered.
    #[must_use]
    pub fn features(&self) -> u64 {
        1 << FEATURE_HOTPLUG | 1 << FEATURE_CHANGE
    }

    /// The driver has chosen.
    pub fn set_features(&self, acked: u64) {
        self.acked.store(acked, Ordering::Relaxed);
    }

    /// Back to how it was made, its units switched off and on: no queue runs.
    pub fn reset(&self) {
        self.acked.store(0, Ordering::Relaxed);
        self.sense_bytes
            .store(DEFAULT_SENSE_BYTES, Ordering::Relaxed);
        self.cdb_bytes.store(DEFAULT_CDB_BYTES, Ordering::Relaxed);
        *lock(&self.events) = Events::default();
        for (_, target) in self.targets() {
            for (_, unit) in target.units() {
                unit.reset(Reset::Bus);
            }
            // It hears that they were switched on, and nothing that was before.
            target.attach(NEXUS, &self.ports());
        }
    }

    /// The ends of the one nexus.
    fn ports(&self) -> Ports {
        Ports {
            initiator: self.options.initiator.clone(),
            target: 1,
        }
    }

    #[inline]
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes {
            sense: self.sense_bytes.load(Ordering::Relaxed) as usize,
            cdb: self.cdb_bytes.load(Ordering::Relaxed) as usize,
        }
    }

    /// Adds a unit, which all running queues know how to reach already, and tells the guest.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(&self, address: Address, unit: Arc<Unit>) -> Result<(), AddError> {
        {
            let mut targets = lock(&self.targets);
            let target = targets.entry(address.target).or_insert_with(|| {
                let target = Target::new();
                target.attach(NEXUS, &self.ports());
                target
            });
            target.add(address.lun, unit)?;
            if lock(&self.queues).is_empty() {
                // Nobody is there yet to whom this would be a change.
                target.attach(NEXUS, &self.ports());
            }
        }
        self.raise(Event::Added(address));
        Ok(())
    }

    /// Removes a unit and tells the guest: no command reaches it any more. Those under way go on. `None`: there was
    /// none.
    pub fn remove(&self, address: Address) -> Option<Arc<Unit>> {
        let removed = {
            let mut targets = lock(&self.targets);
            let target = targets.get(&address.target)?;
            let removed = target.remove(address.lun)?;
            if target.units().is_empty() {
                targets.remove(&address.target);
            }
            removed
        };
        self.raise(Event::Removed(address));
        Some(removed)
    }

    /// The node of a unit has another size now. True if the guest sees that.
    pub fn resize(&self, address: Address, size: u64) -> bool {
        let resized = self.unit(address).is_some_and(|unit| unit.resize(size));
        if resized {
            self.raise(Event::Resized(address));
        }
        resized
    }

    /// Task management functions that the driver waits for.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.functions.load(Ordering::Acquire)
    }

    /// A target that has units.
    pub(crate) fn target(&self, number: u8) -> Option<Arc<Target>> {
        lock(&self.targets).get(&number).cloned()
    }

    /// All of them.
    pub(crate) fn targets(&self) -> Vec<(u8, Arc<Target>)> {
        let targets = lock(&self.targets);
        targets
            .iter()
            .map(|(number, target)| (*number, target.clone()))
            .collect()
    }

    /// The unit at an address.
    #[must_use]
    pub fn unit(&self, address: Address) -> Option<Arc<Unit>> {
        let units = self.target(address.target)?.units();
        let mut units = units.into_iter();
        units.find_map(|(lun, unit)| (lun == address.lun).then_some(unit))
    }

    /// Something has happened that the driver may want to know.
    fn raise(&self, event: Event) {
        let acked = self.acked.load(Ordering::Relaxed);
        if acked & 1 << event.feature() == 0 {
            return;
        }
        lock(&self.events).push(event);
        self.wake_event_queue();
    }

    fn wake_event_queue(&self) {
        if let Some(port) = &*lock(&self.event_queue) {
            port.send(ToQueue::Events);
        }
    }

    /// Whether there are events that the guest does not know yet.
    pub(crate) fn has_events(&self) -> bool {
        !lock(&self.events).is_empty()
    }

    pub(crate) fn open_event_queue(&self, port: Arc<dyn Port>) {
        *lock(&self.event_queue) = Some(port);
    }

    pub(crate) fn close_event_queue(&self, port: &Arc<dyn Port>) {
        let mut queue = lock(&self.event_queue);
        if queue.as_ref().is_some_and(|queue| Arc::ptr_eq(queue, port)) {
            *queue = None;
        }
    }

    /// A queue for commands runs.
    pub(crate) fn open_queue(&self, port: Arc<dyn Port>) {
        lock(&self.queues).push(port);
    }

    /// It does not any more.
    pub(crate) fn close_queue(&self, port: &Arc<dyn Port>) {
        lock(&self.queues).retain(|queue| !Arc::ptr_eq(queue, port));
    }

    /// Tells all queues for commands.
    pub(crate) fn cancel(&self, cancel: &Arc<Cancel>) {
        for queue in &*lock(&self.queues) {
            queue.send(ToQueue::Cancel(cancel.clone()));
        }
    }
}
