//! A virtio-scsi queue on an iothread: a request queue, the control queue or the event queue.
//!
//! Queues of one controller send each other messages, on whatever threads they run. A message arrives in the mailbox of the
//! iothread, as all messages to it do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{AttachedDisk, Node, SourceIo};
use engine::{Completion, Errno};
use telemetry::queue::{AdmissionEnd, AdmitTimeAndKind, QueueName, QueueStats};
use virtio_scsi::{
    AdmitMemoryAndTime, CONTROL_QUEUE, ControlQueue, DiskAddressAndStats, EVENT_QUEUE, EventQueue,
    MessagePort, Queue, QueueMessage,
};
use virtqueue::Chain;

use super::{BrokenQueueError, InFlightCounts, QueueContext, QueueDevice};
use crate::event_loop::Remote;
use crate::messages::{DeviceCommand, ExportReporter, Message, ScsiDisk, ScsiMessage, ScsiSetup};

/// A port that leads to a queue on an iothread.
struct RemoteQueuePort {
    remote: Remote<Message>,
    source_index: u32,
    queue_number: u64,
}

impl MessagePort for RemoteQueuePort {
    /// Sends the message to the mailbox of the queue's iothread, with the number of the queue.
    fn send(&self, message: QueueMessage) {
        let queue_number = self.queue_number;
        let command = DeviceCommand::ToScsi(ScsiMessage {
            queue_number,
            message,
        });
        // An iothread that is gone has taken the queue with it.
        let _ = self
            .remote
            .send(Message::Device(self.source_index, command));
    }
}

/// Number of the next queue, unique in this process.
static NEXT_QUEUE_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The kind of a queue.
#[allow(
    clippy::large_enum_variant,
    reason = "it is in a box, and seldom one of the small ones"
)]
enum Role {
    Commands {
        queue: Queue,
        disks: Vec<AttachedDisk>,
        /// Of each disk.
        reports: Vec<Option<Arc<ExportReporter>>>,
    },
    Control(ControlQueue),
    Events(EventQueue),
}

/// A queue of a controller.
pub(crate) struct ScsiQueue {
    name: QueueName,
    stats: Arc<QueueStats>,
    queue_number: u64,
    role: Role,
}

impl ScsiQueue {
    /// A queue for a ring of `size` entries, with this index on its iothread. Its port is registered with the controller.
    pub fn new_registered(
        ScsiSetup {
            device,
            index,
            disks,
        }: ScsiSetup,
        name: QueueName,
        size: u16,
        source_index: u32,
        stats: Arc<QueueStats>,
        remote: Remote<Message>,
        mut attach: impl FnMut(&Arc<Node>) -> AttachedDisk,
    ) -> Self {
        let queue_number = NEXT_QUEUE_NUMBER.fetch_add(1, Ordering::Relaxed);
        let port = Arc::new(RemoteQueuePort {
            remote,
            source_index,
            queue_number,
        });
        let role = match index {
            CONTROL_QUEUE => Role::Control(ControlQueue::new(device, size, port)),
            EVENT_QUEUE => Role::Events(EventQueue::new_registered(device, port)),
            _ => {
                let (name, stats) = (name.clone(), stats.clone());
                let mut queue = Queue::new_registered(name, device, size, port, stats);
                queue.set_disks_if_idle(&disk_addresses_and_stats(&disks));
                Role::Commands {
                    queue,
                    reports: reporters_of_disks(&disks),
                    disks: disks.iter().map(|disk| attach(&disk.node)).collect(),
                }
            }
        };
        ScsiQueue {
            name,
            stats,
            queue_number,
            role,
        }
    }
}

impl QueueDevice for ScsiQueue {
    fn queue_name(&self) -> &QueueName {
        &self.name
    }

    fn queue_stats(&self) -> &QueueStats {
        &self.stats
    }

    fn disks(&self) -> &[AttachedDisk] {
        match &self.role {
            Role::Commands { disks, .. } => disks,
            Role::Control(_) | Role::Events(_) => &[],
        }
    }

    fn into_disks(self: Box<Self>) -> Vec<AttachedDisk> {
        match self.role {
            Role::Commands { disks, .. } => disks,
            Role::Control(_) | Role::Events(_) => Vec::new(),
        }
    }

    /// Requests that use the guest's memory. The control queue holds that of its functions itself.
    fn in_flight_counts(&self) -> InFlightCounts {
        let requests = match &self.role {
            Role::Commands { queue, .. } => queue.in_flight_count(),
            Role::Control(_) | Role::Events(_) => 0,
        };
        // The guest retries what has failed.
        let parked = 0;
        InFlightCounts { requests, parked }
    }

    /// Admits commands, task management functions or buffers for events, by the role of the queue.
    fn admit(
        &mut self,
        cx: QueueContext<'_>,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<AdmissionEnd, BrokenQueueError> {
        let QueueContext {
            ring,
            memory,
            io,
            source_index,
            now,
            ..
        } = cx;
        let batch = AdmitMemoryAndTime { memory, now };
        let admission = match &mut self.role {
            Role::Commands { queue, disks, .. } => {
                let io = &mut SourceIo {
                    io,
                    disks,
                    source_index,
                    in_flight: queue.in_flight_count() as usize,
                };
                queue.admit_from_ring(ring, batch, chain, io, budget)
            }
            Role::Control(queue) => queue.pop_and_process_requests(ring, memory, chain, budget),
            Role::Events(queue) => queue.report_pending_events(ring, batch, chain),
        };
        Ok(admission?)
    }

    fn take_pushed_outside_completions(&mut self) -> bool {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.take_pushed_outside_completions(),
            Role::Control(queue) => queue.take_has_unpublished(),
            Role::Events(queue) => queue.take_has_unpublished(),
        }
    }

    /// Completes block requests of commands; the other queues have none. The errors of disks are reported.
    fn complete(&mut self, done: &[Completion], cx: QueueContext<'_>) {
        let Role::Commands {
            queue,
            disks,
            reports,
        } = &mut self.role
        else {
            debug_assert!(false, "these queues have no block requests");
            return;
        };
        let io = &mut SourceIo {
            io: cx.io,
            disks,
            source_index: cx.source_index,
            in_flight: queue.in_flight_count() as usize,
        };
        queue.complete_block_requests(cx.ring, done, cx.now, io, |queue, slot, errno| {
            report_failure(queue, reports, slot, errno);
        });
    }

    fn count_completions_and_has_waiting(&mut self) -> bool {
        match &mut self.role {
            Role::Commands { queue, .. } => {
                queue.count_completion_batch();
                queue.has_deferred()
            }
            Role::Control(_) | Role::Events(_) => false,
        }
    }

    /// Only commands wait for room in an engine.
    fn submit_waiting(&mut self, cx: QueueContext<'_>) -> bool {
        match &mut self.role {
            Role::Commands { queue, disks, .. } => {
                let in_flight = queue.in_flight_count() as usize;
                queue.submit_deferred(&mut SourceIo {
                    io: cx.io,
                    disks,
                    source_index: cx.source_index,
                    in_flight,
                })
            }
            Role::Control(_) | Role::Events(_) => true,
        }
    }

    fn on_no_more_admissions(&mut self, ring: &mut virtqueue::Queue) {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.drop_ring_cancellations(),
            Role::Control(queue) => queue.fail_pending_tmfs(ring),
            Role::Events(_) => {}
        }
    }

    /// Buffers for events are not answered.
    fn chains_are_requests(&self) -> bool {
        !matches!(self.role, Role::Events(_))
    }

    fn begin_generation(&mut self) -> AdmitTimeAndKind {
        match &mut self.role {
            Role::Commands { queue, .. } => queue.begin_generation(),
            Role::Control(_) | Role::Events(_) => AdmitTimeAndKind::default(),
        }
    }

    fn pop_finished_of_older_generation(&mut self) -> Option<(AdmitTimeAndKind, u32)> {
        match &mut self.role {
            Role::Commands { queue, .. } => Some((queue.pop_finished_of_older_generation()?, 1)),
            Role::Control(_) | Role::Events(_) => None,
        }
    }

    fn slots_of_older_generations(&self) -> Vec<u32> {
        match &self.role {
            Role::Commands { queue, .. } => queue.slots_of_older_generations().collect(),
            Role::Control(_) | Role::Events(_) => Vec::new(),
        }
    }

    /// Later steps of commands in flight go to the new disks: each step is a complete request.
    fn replace_disks(
        &mut self,
        new: Vec<ScsiDisk>,
        attached: Vec<AttachedDisk>,
    ) -> Vec<AttachedDisk> {
        match &mut self.role {
            Role::Commands {
                queue,
                disks,
                reports,
            } => {
                queue.set_disks_if_idle(&disk_addresses_and_stats(&new));
                *reports = reporters_of_disks(&new);
                std::mem::replace(disks, attached)
            }
            Role::Control(_) | Role::Events(_) => attached,
        }
    }

    /// Continues or cancels commands, answers a task management function, or makes the event queue active. A message for an
    /// earlier queue with the same index, which its number shows, is dropped.
    fn handle_scsi_message(&mut self, message: ScsiMessage, cx: QueueContext<'_>) -> bool {
        if message.queue_number != self.queue_number {
            return false;
        }
        let QueueContext {
            ring,
            io,
            source_index,
            ..
        } = cx;
        match (&mut self.role, message.message) {
            (Role::Commands { queue, disks, .. }, QueueMessage::Resume(token)) => {
                let io = &mut SourceIo {
                    io,
                    disks,
                    source_index,
                    in_flight: queue.in_flight_count() as usize,
                };
                queue.resume_command(ring, token, io);
            }
            (Role::Commands { queue, disks, .. }, QueueMessage::CancelOrFind(cancel)) => {
                let io = &mut SourceIo {
                    io,
                    disks,
                    source_index,
                    in_flight: queue.in_flight_count() as usize,
                };
                let empty = !ring.has_available();
                queue.cancel_or_find_commands(ring, &cancel, io);
                if empty {
                    queue.drop_ring_cancellations();
                }
            }
            (Role::Control(queue), QueueMessage::TmfEnded(outcome)) => {
                queue.apply_resets_and_answer_tmf(ring, &outcome);
            }
            // The queue becomes active.
            (Role::Events(_), QueueMessage::Events) => {}
            _ => debug_assert!(false, "queues get messages for their role"),
        }
        true
    }
}

/// Addresses and statistics of a controller's disks, for its queue.
fn disk_addresses_and_stats(disks: &[ScsiDisk]) -> Vec<DiskAddressAndStats> {
    let disk = |disk: &ScsiDisk| DiskAddressAndStats {
        address: disk.address,
        stats: disk.stats.clone(),
    };
    disks.iter().map(disk).collect()
}

/// The receivers of reports of a controller's disks, in their order.
fn reporters_of_disks(disks: &[ScsiDisk]) -> Vec<Option<Arc<ExportReporter>>> {
    disks.iter().map(|disk| disk.reports.clone()).collect()
}

/// Reports a block request that the disk has failed.
#[cold]
fn report_failure(queue: &Queue, reports: &[Option<Arc<ExportReporter>>], slot: u32, errno: Errno) {
    let reports = queue
        .disk_index_of_command(slot)
        .and_then(|disk| reports.get(disk as usize));
    if let Some(Some(reports)) = reports {
        reports.report_failure(queue.is_read(slot), errno);
    }
}
