//! The device: state that all of its queues share, such as targets and units, accepted features, pending events, and the running
//! queues to which messages go.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scsi::{AddUnitError, BusOrUnitReset, NexusNumber, NexusPorts, Target, TransportId, Unit};

use crate::address::Address;
use crate::messages::{MessagePort, QueueMessage, TmfSharedByQueues};
use crate::unit_event::{PendingEvents, UnitEvent};
use crate::wire::{DEFAULT_CDB_BYTES, DEFAULT_SENSE_BYTES, FEATURE_CHANGE, FEATURE_HOTPLUG};

/// The I_T nexus of the only initiator, the guest's driver.
pub(crate) const NEXUS: NexusNumber = NexusNumber(0);

/// Default queue size of common front-ends: the announced number of segments of a command fits it.
const DEFAULT_QUEUE_SIZE: u16 = 128;

/// Queues before the request queues: control and event queue.
pub const FIXED_QUEUES: u16 = 2;

/// The control queue's number.
pub const CONTROL_QUEUE: u16 = 0;

/// The event queue's number.
pub const EVENT_QUEUE: u16 = 1;

/// Options of a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Request queues, 1 to 1024.
    pub request_queues: u16,
    /// Maximal queue size, a power of two.
    pub queue_size: u16,
    /// The guest's name in persistent reservations.
    pub initiator: TransportId,
}

/// Error of invalid options.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OptionsError {
    /// No request queues, or too many.
    #[error("num-queues={0}: a controller has 1 to {MAX_REQUEST_QUEUES} queues for commands")]
    Queues(u16),
    /// Not a power of two, or out of range.
    #[error(
        "queue-size={0}: must be a power of two from 2 to {max}", max = virtqueue::MAX_QUEUE_SIZE)]
    QueueSize(u16),
}

/// Limit of request queues: as many as common drivers use.
const MAX_REQUEST_QUEUES: u16 = 1024;

/// Sizes of sense data and CDBs that the driver has set in the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenseAndCdbSizes {
    pub sense: usize,
    pub cdb: usize,
}

/// One virtio-scsi device.
pub struct Device {
    options: DeviceOptions,
    targets: Mutex<BTreeMap<u8, Arc<Target>>>,
    acked_features: AtomicU64,
    pub(crate) sense_bytes: AtomicU32,
    pub(crate) cdb_bytes: AtomicU32,
    /// Running request queues.
    queues: Mutex<Vec<Arc<dyn MessagePort>>>,
    event_queue: Mutex<Option<Arc<dyn MessagePort>>>,
    pub(crate) events: Mutex<PendingEvents>,
    /// Number of unanswered task management functions.
    pub(crate) unanswered_functions: AtomicUsize,
}

/// Locks state that is consistent even if a thread has panicked.
pub(crate) fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// A device without units.
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
            acked_features: AtomicU64::new(0),
            sense_bytes: AtomicU32::new(DEFAULT_SENSE_BYTES),
            cdb_bytes: AtomicU32::new(DEFAULT_CDB_BYTES),
            queues: Mutex::default(),
            event_queue: Mutex::default(),
            events: Mutex::default(),
            unanswered_functions: AtomicUsize::new(0),
        })
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> &DeviceOptions {
        &self.options
    }

    /// Maximal number of data segments of a command: a chain as long as the queue, less header and response.
    #[must_use]
    pub fn max_segments(&self) -> u32 {
        u32::from(self.options.queue_size.min(DEFAULT_QUEUE_SIZE))
            .saturating_sub(2)
            .max(1)
    }

    /// The device's own feature bits. Data in both directions and protection information are not offered.
    #[must_use]
    pub fn features(&self) -> u64 {
        1 << FEATURE_HOTPLUG | 1 << FEATURE_CHANGE
    }

    /// Sets the features that the driver has accepted.
    pub fn set_features(&self, acked: u64) {
        self.acked_features.store(acked, Ordering::Relaxed);
    }

    /// Resets the device and power-cycles its units. No queue runs.
    pub fn reset_with_units(&self) {
        self.acked_features.store(0, Ordering::Relaxed);
        self.sense_bytes
            .store(DEFAULT_SENSE_BYTES, Ordering::Relaxed);
        self.cdb_bytes.store(DEFAULT_CDB_BYTES, Ordering::Relaxed);
        *lock_ignoring_poison(&self.events) = PendingEvents::default();
        for (_, target) in self.targets() {
            for (_, unit) in target.units() {
                unit.reset(BusOrUnitReset::Bus);
            }
            // The nexus gets the unit attention of a power-on, and none from before.
            target.attach_initiator_and_start_units(NEXUS, &self.initiator_and_target_port());
        }
    }

    /// Initiator and target port of the nexus.
    fn initiator_and_target_port(&self) -> NexusPorts {
        NexusPorts {
            initiator: self.options.initiator.clone(),
            target: 1,
        }
    }

    /// The sizes of sense data and CDBs at present.
    #[inline]
    pub(crate) fn sense_and_cdb_sizes(&self) -> SenseAndCdbSizes {
        SenseAndCdbSizes {
            sense: self.sense_bytes.load(Ordering::Relaxed) as usize,
            cdb: self.cdb_bytes.load(Ordering::Relaxed) as usize,
        }
    }

    /// Adds a unit, which all running queues can reach already, and reports it to the guest.
    ///
    /// # Errors
    /// [`AddUnitError`].
    pub fn add_unit_and_report(
        &self,
        address: Address,
        unit: Arc<Unit>,
    ) -> Result<(), AddUnitError> {
        {
            let mut targets = lock_ignoring_poison(&self.targets);
            let target = targets.entry(address.target).or_insert_with(|| {
                let target = Target::new();
                target.attach_initiator_and_start_units(NEXUS, &self.initiator_and_target_port());
                target
            });
            target.add_unit_and_raise_attentions(address.lun, unit)?;
            if lock_ignoring_poison(&self.queues).is_empty() {
                // Without a running queue, no driver has seen the device without this unit.
                target.attach_initiator_and_start_units(NEXUS, &self.initiator_and_target_port());
            }
        }
        self.raise_event_if_negotiated(UnitEvent::Added(address));
        Ok(())
    }

    /// Removes a unit and reports it to the guest: no new command reaches it. Commands in flight continue. `None`: there
    /// was none.
    pub fn remove_unit_and_report(&self, address: Address) -> Option<Arc<Unit>> {
        let removed = {
            let mut targets = lock_ignoring_poison(&self.targets);
            let target = targets.get(&address.target)?;
            let removed = target.remove_unit_and_raise_attentions(address.lun)?;
            if target.units().is_empty() {
                targets.remove(&address.target);
            }
            removed
        };
        self.raise_event_if_negotiated(UnitEvent::Removed(address));
        Some(removed)
    }

    /// Sets the size of a unit's node. True if the guest sees the change.
    pub fn resize_unit(&self, address: Address, size: u64) -> bool {
        let resized = self.unit(address).is_some_and(|unit| unit.resize(size));
        if resized {
            self.raise_event_if_negotiated(UnitEvent::Resized(address));
        }
        resized
    }

    /// Number of task management functions that the driver waits for.
    #[must_use]
    pub fn unanswered_tmf_count(&self) -> usize {
        self.unanswered_functions.load(Ordering::Acquire)
    }

    /// The target with this number, if it has units.
    pub(crate) fn target(&self, number: u8) -> Option<Arc<Target>> {
        lock_ignoring_poison(&self.targets).get(&number).cloned()
    }

    /// All targets that have units.
    pub(crate) fn targets(&self) -> Vec<(u8, Arc<Target>)> {
        let targets = lock_ignoring_poison(&self.targets);
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

    /// Queues an event if the driver has accepted the feature for it.
    fn raise_event_if_negotiated(&self, event: UnitEvent) {
        let acked = self.acked_features.load(Ordering::Relaxed);
        if acked & 1 << event.required_feature() == 0 {
            return;
        }
        lock_ignoring_poison(&self.events).push(event);
        self.wake_event_queue();
    }

    /// Notifies the event queue, if it runs, that there are events.
    fn wake_event_queue(&self) {
        if let Some(port) = &*lock_ignoring_poison(&self.event_queue) {
            port.send(QueueMessage::Events);
        }
    }

    /// Whether there are unreported events.
    pub(crate) fn has_events(&self) -> bool {
        !lock_ignoring_poison(&self.events).is_empty()
    }

    /// Registers the running event queue.
    pub(crate) fn register_event_queue(&self, port: Arc<dyn MessagePort>) {
        *lock_ignoring_poison(&self.event_queue) = Some(port);
    }

    /// Removes the event queue, unless another one runs already.
    pub(crate) fn unregister_event_queue(&self, port: &Arc<dyn MessagePort>) {
        let mut queue = lock_ignoring_poison(&self.event_queue);
        if queue.as_ref().is_some_and(|queue| Arc::ptr_eq(queue, port)) {
            *queue = None;
        }
    }

    /// Registers a running request queue.
    pub(crate) fn register_queue_port(&self, port: Arc<dyn MessagePort>) {
        lock_ignoring_poison(&self.queues).push(port);
    }

    /// Removes a request queue that has stopped.
    pub(crate) fn unregister_queue(&self, port: &Arc<dyn MessagePort>) {
        lock_ignoring_poison(&self.queues).retain(|queue| !Arc::ptr_eq(queue, port));
    }

    /// Sends a task management function to all request queues.
    pub(crate) fn send_tmf_to_request_queues(&self, cancel: &Arc<TmfSharedByQueues>) {
        for queue in &*lock_ignoring_poison(&self.queues) {
            queue.send(QueueMessage::CancelOrFind(cancel.clone()));
        }
    }
}
