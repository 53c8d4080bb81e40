//! What a virtqueue belongs to.
//!
//! The choice is made once for a batch and once for a completion, and is a comparison for a disk's queue.

use std::sync::Arc;

use block::{Engines, Node, Request, Route};
use counters::Clock;
use virtio_blk::{Admission, AdmitError, QueueName, QueueStats, Retried};
use virtqueue::{Chain, GuestMemory};

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
    /// The way of its requests to the disk.
    pub route: Route,
    pub clock: Clock,
}

impl Blk {
    /// Takes requests off the ring. It has [begun](virtio_blk::Queue::begin_batch).
    #[inline(never)]
    pub fn admit(
        &mut self,
        ring: &mut virtqueue::Queue,
        memory: &GuestMemory,
        chain: &mut Chain,
        engines: &mut Engines,
    ) -> Result<Admission, AdmitError> {
        let Blk { queue, route, .. } = self;
        let sink = &mut RouteSink { engines, route };
        queue.admit(ring, memory, chain, sink, ADMIT_BUDGET)
    }

    /// Hands a block request over once more. There is room.
    pub fn retry(&mut self, slot: u32, engines: &mut Engines) -> Retried {
        let Blk { queue, route, .. } = self;
        queue.retry(slot, &mut RouteSink { engines, route })
    }
}

/// The engines as a disk sees them.
struct RouteSink<'a> {
    engines: &'a mut Engines,
    route: &'a Route,
}

impl virtio_blk::Sink for RouteSink<'_> {
    #[inline]
    fn room(&self) -> usize {
        self.engines.room(self.route)
    }

    #[inline]
    fn merging_helps(&self) -> bool {
        self.route.merging_helps()
    }

    #[inline(always)]
    unsafe fn submit(&mut self, request: Request) {
        // SAFETY: the device's promise reaches to the completion; the vring keeps the route, and the
        // memory map by its epoch, until then (`stopping` waits for all completions).
        let taken = unsafe { self.engines.submit(self.route, request) };
        assert!(
            taken.is_ok(),
            "the device asked for room before it took the request"
        );
    }
}

impl Served {
    /// The ways of its requests to disks, when it ends.
    pub fn into_routes(self) -> Vec<Route> {
        match self {
            Served::Blk(blk) => vec![blk.route],
            Served::Scsi(scsi) => scsi.into_routes(),
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
