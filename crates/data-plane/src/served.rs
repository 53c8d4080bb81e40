//! What a virtqueue belongs to.
//!
//! The choice is made once for a batch and once for a completion, and is a comparison for a disk's queue.

use std::sync::Arc;

use block::{Engines, Node, Request};
use counters::Clock;
use virtio_blk::{Admission, AdmitError, QueueName, QueueStats, Retried};
use virtqueue::{Chain, GuestMemory, LoggedQueue, TrackedQueue};

use crate::scsi::{Scsi, ScsiSetup};
use crate::vring::ADMIT_BUDGET;

/// The device that a queue is one of.
pub enum Serves {
    /// A disk.
    Blk {
        /// How its guest sees it.
        device: Arc<virtio_blk::Device>,
        /// What is behind it.
        node: Arc<Node>,
    },
    /// A controller with disks.
    Scsi(ScsiSetup),
}

/// A queue without its ring.
#[allow(
    clippy::large_enum_variant,
    reason = "a disk's queue is not behind another pointer"
)]
pub(crate) enum Served {
    Blk(Blk),
    Scsi(Box<Scsi>),
}

/// A disk's.
pub(crate) struct Blk {
    pub queue: virtio_blk::Queue,
    pub node: Arc<Node>,
    pub clock: Clock,
}

impl Blk {
    /// Takes requests off the ring, whose form matters once per batch. It has [begun](virtio_blk::Queue::begin_batch).
    #[inline(never)]
    pub fn admit(
        &mut self,
        ring: &mut virtqueue::Queue,
        memory: &GuestMemory,
        chain: &mut Chain,
        engines: &mut Engines,
    ) -> Result<Admission, AdmitError> {
        let Blk { queue, node, .. } = self;
        let sink = &mut NodeSink { engines, node };
        match ring {
            virtqueue::Queue::Split(ring) => queue.admit(ring, memory, chain, sink, ADMIT_BUDGET),
            virtqueue::Queue::Packed(ring) => queue.admit(ring, memory, chain, sink, ADMIT_BUDGET),
            virtqueue::Queue::Tracked(ring) => admit_tracked(queue, ring, memory, chain, sink),
        }
    }

    /// Hands a block request over once more. There is room.
    pub fn retry(&mut self, slot: u32, engines: &mut Engines) -> Retried {
        let Blk { queue, node, .. } = self;
        queue.retry(slot, &mut NodeSink { engines, node })
    }
}

/// Out of line, so that queues without a record have the registers.
#[inline(never)]
fn admit_tracked(
    queue: &mut virtio_blk::Queue,
    ring: &mut TrackedQueue,
    memory: &GuestMemory,
    chain: &mut Chain,
    sink: &mut NodeSink<'_>,
) -> Result<Admission, AdmitError> {
    match ring {
        TrackedQueue::Split(ring) => queue.admit(ring, memory, chain, sink, ADMIT_BUDGET),
        TrackedQueue::Packed(ring) => queue.admit(ring, memory, chain, sink, ADMIT_BUDGET),
        TrackedQueue::Logged(ring) => admit_logged(queue, ring, memory, chain, sink),
    }
}

/// As above.
#[cold]
#[inline(never)]
fn admit_logged(
    queue: &mut virtio_blk::Queue,
    ring: &mut LoggedQueue,
    memory: &GuestMemory,
    chain: &mut Chain,
    sink: &mut NodeSink<'_>,
) -> Result<Admission, AdmitError> {
    queue.admit(ring, memory, chain, sink, ADMIT_BUDGET)
}

/// The engines as a disk sees them.
struct NodeSink<'a> {
    engines: &'a mut Engines,
    node: &'a Node,
}

impl virtio_blk::Sink for NodeSink<'_> {
    #[inline]
    fn room(&self) -> usize {
        self.engines.room(self.node)
    }

    #[inline]
    fn merging_helps(&self) -> bool {
        self.node.merging_helps()
    }

    #[inline(always)]
    unsafe fn submit(&mut self, request: Request) {
        // SAFETY: the device's promise reaches to the completion; the vring keeps the node, and the
        // memory map by its epoch, until then (`stopping` waits for all completions).
        let taken = unsafe { self.engines.submit(self.node, request) };
        assert!(
            taken.is_ok(),
            "the device asked for room before it took the request"
        );
    }
}

impl Served {
    /// The disks that its requests go to.
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Served::Blk(blk) => vec![blk.node.clone()],
            Served::Scsi(scsi) => scsi.disks().iter().map(|disk| disk.node.clone()).collect(),
        }
    }

    #[inline]
    pub fn in_flight(&self) -> u32 {
        match self {
            Served::Blk(blk) => blk.queue.in_flight(),
            Served::Scsi(scsi) => scsi.in_flight(),
        }
    }

    #[inline]
    pub fn stats(&self) -> &QueueStats {
        match self {
            Served::Blk(blk) => blk.queue.stats(),
            Served::Scsi(scsi) => scsi.stats(),
        }
    }

    pub fn name(&self) -> &QueueName {
        match self {
            Served::Blk(blk) => blk.queue.name(),
            Served::Scsi(scsi) => scsi.name(),
        }
    }

    /// Whether admitting has answered requests by itself.
    #[inline]
    pub fn take_answered(&mut self) -> bool {
        match self {
            Served::Blk(blk) => blk.queue.take_answered(),
            Served::Scsi(scsi) => scsi.take_answered(),
        }
    }
}
