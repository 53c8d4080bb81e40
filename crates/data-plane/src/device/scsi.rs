//! A virtio-scsi queue on an iothread: for commands, for control or for events.
//!
//! Queues of one controller send each other messages, whichever threads they are on. A message comes through the mailbox of
//! the iothread, as all messages to it do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Engines, Node, Request, Route};
use device_queue::{Admission, AdmitTime, QueueName, QueueStats};
use engine::{Completion, Errno};
use event_loop::Remote;
use virtio_scsi::{
    Address, Batch, CONTROL_QUEUE, ControlQueue, Device, EVENT_QUEUE, EventQueue, Port, Queue,
    QueueDisk, ToQueue,
};
use virtqueue::Chain;

use super::{Broken, InFlight, QueueContext, QueueDevice, Stop};
use crate::message::Message;
use crate::parked_requests::Resume;
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
    /// Where failed requests are reported, beside the log.
    pub reports: Option<Arc<ExportReports>>,
}

/// A message to a queue, with the queue's number: places are used again.
pub struct ScsiMessage {
    queue: u64,
    message: ToQueue,
}

/// The way to a queue on an iothread.
struct RemoteQueuePort {
    remote: Remote<Message>,
    place: u32,
    queue: u64,
}

impl Port for RemoteQueuePort {
    fn send(&self, message: ToQueue) {
        let queue = self.queue;
        // An iothread that is gone has taken the queue with it.
        let _ = self
            .remote
            .send(Message::ToScsi(self.place, ScsiMessage { queue, message }));
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

/// A queue of a controller.
pub(crate) struct ScsiQueue {
    name: QueueName,
    stats: Arc<QueueStats>,
    number: u64,
    role: Role,
}

/// The disks, as the device sees them.
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
            "the device asked for room before it submitted the request"
        );
    }

    fn call(&mut self, disk: u32, chore: virtio_scsi::Chore, token: u64) {
        let node = self.disks[disk as usize].disk.node.clone();
        self.engines.call(Box::new(move || chore.run(&node)), token);
    }
}

impl ScsiQueue {
    /// For a ring of `size` entries, at this place of an iothread. `attach` makes the route to a disk.
    pub fn new(
        ScsiSetup {
            device,
            index,
            disks,
        }: ScsiSetup,
        name: QueueName,
        size: u16,
        place: u32,
        stats: Arc<QueueStats>,
        remote: Remote<Message>,
        mut attach: impl FnMut(&Node) -> Route,
    ) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = Arc::new(RemoteQueuePort {
            remote,
            place,
            queue: number,
        });
        let role = match index {
            CONTROL_QUEUE => Role::Control(ControlQueue::new(device, size, port)),
            EVENT_QUEUE => Role::Events(EventQueue::new(device, port)),
            _ => {
                let attached = |disk: ScsiDisk| AttachedDisk {
                    route: attach(&disk.node),
                    disk,
                };
                let disks: Vec<_> = disks.into_iter().map(attached).collect();
                let (name, stats) = (name.clone(), stats.clone());
                let mut queue = Queue::new(name, device, size, place, port, stats);
                queue.set_disks(&counted(&disks));
                Role::Commands { queue, disks }
            }
        };
        ScsiQueue {
            name,
            stats,
            number,
            role,
        }
    }
}

impl QueueDevice for ScsiQueue {
    fn name(&self) -> &QueueName {
        &self.name
    }

    fn stats(&self) -> &QueueStats {
        &self.stats
    }

    fn into_routes(self) -> Vec<Route> {
        match self.role {
            Role::Commands { disks, .. } => disks.into_iter().map(|disk| disk.route).collect(),
            Role::Control(_) | Role::Events(_) => Vec::new(),
        }
    }

    /// Requests that use the guest's memory. Functions on the control queue keep theirs themselves.
    fn in_flight(&self) -> InFlight {
        let requests = match &self.role {
            Role::Commands { queue, .. } => queue.in_flight(),
            Role::Control(_) | Role::Events(_) => 0,
        };
        let parked = 0;
        InFlight { requests, parked }
    }

    fn admit(
        &mut self,
        cx: QueueContext<'_>,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<Admission, Broken> {
        let QueueContext {
            ring,
            memory,
            engines,
            now,
            ..
        } = cx;
        let batch = Batch { memory, now };
        let admission = match &mut self.role {
            Role::Commands { queue, disks } => {
                let sink = &mut DisksSink { engines, disks };
                queue.admit(ring, batch, chain, sink, budget)
            }
            Role::Control(queue) => queue.admit(ring, memory, chain, budget),
            Role::Events(queue) => queue.admit(ring, batch, chain),
        };
        Ok(admission?)
    }

    fn take_answered(&mut self) -> bool {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.take_answered(),
            Role::Control(queue) => queue.take_answered(),
            Role::Events(queue) => queue.take_answered(),
        }
    }

    fn complete(&mut self, done: &[Completion], cx: QueueContext<'_>) {
        let Role::Commands { queue, disks } = &mut self.role else {
            debug_assert!(false, "these queues have no block requests");
            return;
        };
        let disks: &[AttachedDisk] = disks;
        let sink = &mut DisksSink {
            engines: cx.engines,
            disks,
        };
        queue.complete(cx.ring, done, cx.now, sink, |queue, slot, errno| {
            report_failed(queue, disks, slot, errno);
        });
    }

    fn end_batch(&mut self) -> bool {
        match &mut self.role {
            Role::Commands { queue, .. } => {
                queue.end_batch();
                queue.has_deferred()
            }
            Role::Control(_) | Role::Events(_) => false,
        }
    }

    fn submit_deferred(&mut self, cx: QueueContext<'_>) -> bool {
        match &mut self.role {
            Role::Commands { queue, disks } => queue.submit_deferred(&mut DisksSink {
                engines: cx.engines,
                disks,
            }),
            Role::Control(_) | Role::Events(_) => true,
        }
    }

    /// Commands are never parked: the guest retries.
    fn resume_parked(&mut self, _: Resume, _: QueueContext<'_>) -> bool {
        true
    }

    fn enabled(&mut self, _: QueueContext<'_>) -> bool {
        true
    }

    fn end_admissions(&mut self, ring: &mut virtqueue::Queue) {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.end_admissions(),
            Role::Control(queue) => queue.stop(ring),
            Role::Events(_) => {}
        }
    }

    fn stop(&mut self, _: Stop, _: QueueContext<'_>) {}

    /// Buffers for events are not answered.
    fn has_requests(&self) -> bool {
        !matches!(self.role, Role::Events(_))
    }

    fn begin_generation(&mut self) -> AdmitTime {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.begin_generation(),
            Role::Control(_) | Role::Events(_) => AdmitTime::default(),
        }
    }

    fn take_old(&mut self) -> Option<(AdmitTime, u32)> {
        match &mut self.role {
            Role::Commands { queue, .. } => Some((queue.take_old()?, 1)),
            Role::Control(_) | Role::Events(_) => None,
        }
    }

    fn set_disks(&mut self, new: Vec<AttachedDisk>) -> Vec<AttachedDisk> {
        match &mut self.role {
            Role::Commands { queue, disks } => {
                queue.set_disks(&counted(&new));
                std::mem::replace(disks, new)
            }
            Role::Control(_) | Role::Events(_) => new,
        }
    }

    fn handle_message(&mut self, message: ScsiMessage, cx: QueueContext<'_>) -> bool {
        if message.queue != self.number {
            return false;
        }
        let QueueContext { ring, engines, .. } = cx;
        match (&mut self.role, message.message) {
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
            // The queue becomes active.
            (Role::Events(_), ToQueue::Events) => {}
            _ => debug_assert!(false, "queues get messages for their role"),
        }
        true
    }
}

fn counted(disks: &[AttachedDisk]) -> Vec<QueueDisk> {
    let disk = |AttachedDisk { disk, .. }: &AttachedDisk| QueueDisk {
        address: disk.address,
        stats: disk.stats.clone(),
    };
    disks.iter().map(disk).collect()
}

/// The disk has failed a block request.
#[cold]
fn report_failed(queue: &Queue, disks: &[AttachedDisk], slot: u32, errno: Errno) {
    let disk = queue.disk(slot).and_then(|disk| disks.get(disk as usize));
    if let Some(reports) = disk.and_then(|disk| disk.disk.reports.as_ref()) {
        reports.failed(queue.is_read(slot), errno);
    }
}
