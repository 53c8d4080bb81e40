//! A virtqueue of a SCSI controller: for commands, for control or for events.
//!
//! Queues of one controller tell each other things, whichever threads they are on. What one is told comes as a
//! message, like all that concerns an iothread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Engines, Node, Request, Route};
use engine::Completion;
use event_loop::Remote;
use virtio_blk::{Admission, QueueName, QueueStats, Stamp};
use virtio_scsi::{
    Address, Batch, CONTROL_QUEUE, ControlQueue, Device, EVENT_QUEUE, EventQueue, Port, Queue,
    QueueDisk, ToQueue,
};
use virtqueue::{Chain, GuestMemory};

use crate::message::Message;
use crate::reports::ExportReports;

/// What a controller's queue is started with.
pub struct ScsiSetup {
    /// The controller.
    pub device: Arc<Device>,
    /// Which of its queues.
    pub index: u16,
    /// Its units' disks.
    pub disks: Vec<ScsiDisk>,
}

/// A unit and the disk behind it.
#[derive(Clone)]
pub struct ScsiDisk {
    /// Where the guest finds it.
    pub address: Address,
    /// The disk.
    pub node: Arc<Node>,
    /// What the queue's commands to it are counted in, beside the queue's own figures: other queues do so as well if they
    /// run on the same iothread.
    pub stats: Arc<QueueStats>,
    /// Who hears of failed requests, beside the log.
    pub reports: Option<Arc<ExportReports>>,
}

/// What a queue was told, with the queue's number: places are used again.
pub struct ScsiMail {
    queue: u64,
    message: ToQueue,
}

/// The way to a queue on an iothread.
struct Way {
    remote: Remote<Message>,
    place: u32,
    queue: u64,
}

impl Port for Way {
    fn send(&self, message: ToQueue) {
        let queue = self.queue;
        // An iothread that is gone has taken the queue with it.
        let _ = self
            .remote
            .send(Message::ToScsi(self.place, ScsiMail { queue, message }));
    }
}

/// Numbers of queues, for as long as the program runs.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a queue is for.
#[allow(
    clippy::large_enum_variant,
    reason = "it is in a box, and seldom one of the small ones"
)]
enum Role {
    Commands {
        queue: Queue,
        disks: Vec<AttachedDisk>,
    },
    Control(ControlQueue),
    Events(EventQueue),
}

/// A queue of a controller, without its ring.
pub(crate) struct Scsi {
    name: QueueName,
    stats: Arc<QueueStats>,
    number: u64,
    role: Role,
}

/// What every call needs of the queue's surroundings.
pub(crate) struct Around<'a> {
    pub ring: &'a mut virtqueue::Queue,
    pub memory: &'a Arc<GuestMemory>,
    pub engines: &'a mut Engines,
    /// In ticks.
    pub now: u64,
}

/// The engines as a controller sees them.
struct DisksSink<'a> {
    engines: &'a mut Engines,
    disks: &'a [AttachedDisk],
}

/// A disk, with the way of the queue's requests to it.
pub(crate) struct AttachedDisk {
    pub disk: ScsiDisk,
    pub route: Route,
}

impl virtio_scsi::Sink for DisksSink<'_> {
    #[inline(always)]
    fn room(&self, disk: u32) -> usize {
        self.engines.room(&self.disks[disk as usize].route)
    }

    #[inline(always)]
    unsafe fn submit(&mut self, disk: u32, request: Request) {
        // SAFETY: the device's promise reaches to the completion; the queue keeps its disks, and the vring
        // the memory map by its epoch, until then.
        let taken = unsafe {
            self.engines
                .submit(&self.disks[disk as usize].route, request)
        };
        assert!(
            taken.is_ok(),
            "the device asked for room before it handed the request over"
        );
    }

    fn call(&mut self, disk: u32, chore: virtio_scsi::Chore, token: u64) {
        let node = self.disks[disk as usize].disk.node.clone();
        self.engines.call(Box::new(move || chore.run(&node)), token);
    }
}

impl Scsi {
    /// For a ring of `size` entries, at this place of an iothread.
    /// The setup's disks are `disks`.
    pub fn new(
        ScsiSetup { device, index, .. }: ScsiSetup,
        disks: Vec<AttachedDisk>,
        name: QueueName,
        size: u16,
        place: u32,
        stats: Arc<QueueStats>,
        remote: Remote<Message>,
    ) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = Arc::new(Way {
            remote,
            place,
            queue: number,
        });
        let role = match index {
            CONTROL_QUEUE => Role::Control(ControlQueue::new(device, size, port)),
            EVENT_QUEUE => Role::Events(EventQueue::new(device, port)),
            _ => {
                let (name, stats) = (name.clone(), stats.clone());
                let mut queue = Queue::new(name, device, size, place, port, stats);
                queue.set_disks(&counted(&disks));
                Role::Commands { queue, disks }
            }
        };
        Scsi {
            name,
            stats,
            number,
            role,
        }
    }

    pub fn name(&self) -> &QueueName {
        &self.name
    }

    pub fn stats(&self) -> &QueueStats {
        &self.stats
    }

    /// The ways of its requests to disks, when it ends.
    pub fn into_routes(self) -> Vec<Route> {
        match self.role {
            Role::Commands { disks, .. } => disks.into_iter().map(|disk| disk.route).collect(),
            Role::Control(_) | Role::Events(_) => Vec::new(),
        }
    }

    /// Goes on with other disks; returns the old ones. Nothing is in flight.
    pub fn set_disks(&mut self, new: Vec<AttachedDisk>) -> Vec<AttachedDisk> {
        match &mut self.role {
            Role::Commands { queue, disks } => {
                queue.set_disks(&counted(&new));
                std::mem::replace(disks, new)
            }
            Role::Control(_) | Role::Events(_) => new,
        }
    }

    /// Requests that use the guest's memory. Functions on the control queue keep theirs themselves.
    pub fn in_flight(&self) -> u32 {
        match &self.role {
            Role::Commands { queue, .. } => queue.in_flight(),
            Role::Control(_) | Role::Events(_) => 0,
        }
    }

    /// Whether chains are wanted at all: events wait for something to happen.
    pub fn wants_chains(&self) -> bool {
        match &self.role {
            Role::Events(queue) => queue.wants_buffers(),
            Role::Commands { .. } | Role::Control(_) => true,
        }
    }

    /// Whether what it takes is to be answered: buffers for events are not.
    pub fn is_for_requests(&self) -> bool {
        match &self.role {
            Role::Events(_) => false,
            Role::Commands { .. } | Role::Control(_) => true,
        }
    }

    /// Hands over what found no room before. True: nothing waits any more.
    pub fn hand_over_deferred(&mut self, engines: &mut Engines) -> bool {
        match &mut self.role {
            Role::Commands { queue, disks } => {
                queue.submit_deferred(&mut DisksSink { engines, disks })
            }
            Role::Control(_) | Role::Events(_) => true,
        }
    }

    /// Takes up to `budget` chains off the ring.
    pub fn admit(
        &mut self,
        around: Around<'_>,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<Admission, virtio_scsi::AdmitError> {
        let Around {
            ring,
            memory,
            engines,
            now,
        } = around;
        let batch = Batch { memory, now };
        match &mut self.role {
            Role::Commands { queue, disks } => {
                let sink = &mut DisksSink { engines, disks };
                queue.admit(ring, batch, chain, sink, budget)
            }
            Role::Control(queue) => queue.admit(ring, memory, chain, budget),
            Role::Events(queue) => queue.admit(ring, batch, chain),
        }
    }

    /// Whether used entries were pushed other than by completions.
    pub fn take_answered(&mut self) -> bool {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.take_answered(),
            Role::Control(queue) => queue.take_answered(),
            Role::Events(queue) => queue.take_answered(),
        }
    }

    /// A block request has succeeded: how many of those that follow are done with it. `None`: it is no plain read or write, and is not
    /// done yet.
    #[inline(always)]
    pub fn complete_transfers(
        &mut self,
        slot: u32,
        following: &[Completion],
        ring: &mut virtqueue::Queue,
        now: u64,
    ) -> Option<usize> {
        let Role::Commands { queue, .. } = &mut self.role else {
            return None;
        };
        queue.complete_transfers(ring, slot, following, now)
    }

    /// A block request is done.
    pub fn complete(&mut self, slot: u32, result: Result<(), engine::Errno>, around: Around<'_>) {
        let Role::Commands { queue, disks } = &mut self.role else {
            debug_assert!(false, "these queues ask for nothing");
            return;
        };
        if let Err(errno) = result {
            failed(queue, disks, slot, errno);
        }
        let Around {
            ring, engines, now, ..
        } = around;
        let sink = &mut DisksSink { engines, disks };
        queue.complete(ring, slot, result, now, sink);
    }

    /// What another queue says. False: it was not meant.
    pub fn told(&mut self, mail: ScsiMail, around: Around<'_>) -> bool {
        if mail.queue != self.number {
            return false;
        }
        let Around { ring, engines, .. } = around;
        match (&mut self.role, mail.message) {
            (Role::Commands { queue, disks }, ToQueue::Resume(token)) => {
                let sink = &mut DisksSink { engines, disks };
                queue.resume(ring, token, sink);
            }
            (Role::Commands { queue, disks }, ToQueue::Cancel(cancel)) => {
                let sink = &mut DisksSink { engines, disks };
                let empty = !ring.has_available();
                queue.cancel(ring, &cancel, sink);
                if empty {
                    queue.end_admissions();
                }
            }
            (Role::Control(queue), ToQueue::Cancelled(outcome)) => {
                queue.cancelled(ring, &outcome);
            }
            // It has its turn.
            (Role::Events(_), ToQueue::Events) => {}
            _ => debug_assert!(false, "queues are told what concerns them"),
        }
        true
    }

    /// No chain is taken off the ring any more, for good.
    pub fn end_admissions(&mut self, ring: &mut virtqueue::Queue) {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.end_admissions(),
            Role::Control(queue) => queue.stop(ring),
            Role::Events(_) => {}
        }
    }

    /// What is taken from now on is of another generation than before, which is returned.
    pub fn begin_generation(&mut self) -> Stamp {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.begin_generation(),
            Role::Control(_) | Role::Events(_) => Stamp::default(),
        }
    }

    /// When something was taken that was finished and is of an older generation.
    pub fn take_old(&mut self) -> Option<Stamp> {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.take_old(),
            Role::Control(_) | Role::Events(_) => None,
        }
    }

    /// What was completed so far counts. True when requests wait for room.
    pub fn end_batch(&mut self) -> bool {
        match &mut self.role {
            Role::Commands { queue, .. } => {
                queue.end_batch();
                queue.has_deferred()
            }
            Role::Control(_) | Role::Events(_) => false,
        }
    }
}

fn counted(disks: &[AttachedDisk]) -> Vec<QueueDisk> {
    let disk = |AttachedDisk { disk, .. }: &AttachedDisk| QueueDisk {
        address: disk.address,
        stats: disk.stats.clone(),
    };
    disks.iter().map(disk).collect()
}

/// The disk could not do it.
#[cold]
fn failed(queue: &Queue, disks: &[AttachedDisk], slot: u32, errno: engine::Errno) {
    let disk = queue.disk(slot).and_then(|disk| disks.get(disk as usize));
    if let Some(reports) = disk.and_then(|disk| disk.disk.reports.as_ref()) {
        reports.failed(queue.is_read(slot), errno);
    }
}
