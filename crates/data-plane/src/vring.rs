//! One started virtqueue: its ring, its device queue, the descriptors around it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{Node, Request};
use event_loop::HandlerId;
use virtio_blk::{Admission, Finished};
use virtqueue::{Chain, GuestMemory, RingError, RingFeatures, RingLayout, SplitQueue};

use block::Engines;

/// Requests taken from one queue per iteration, at most. It bounds how long the other queues of
/// the iothread wait for their turn, and the guest for its completions.
const ADMIT_BUDGET: usize = 64;

/// What a queue is started with.
pub struct VringSetup {
    /// What messages call it: the export and the queue's index.
    pub name: String,
    /// The device that it is a queue of.
    pub device: Arc<virtio_blk::Device>,
    /// The disk behind the device.
    pub node: Arc<Node>,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Where its rings are.
    pub layout: RingLayout,
    /// What the driver chose.
    pub features: RingFeatures,
    /// The available index to take next.
    pub base: u16,
    /// Readable when the guest has added something; `None`: it will not say.
    pub kick: Option<OwnedFd>,
    /// To signal the guest with, an eventfd that is set not to block; `None`: the guest polls.
    pub call: Option<OwnedFd>,
    /// To tell that the queue is broken, an eventfd that is set not to block.
    pub err: Option<OwnedFd>,
    /// Whether requests are taken from the start.
    pub enabled: bool,
}

/// Why a queue could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its rings are not where they can be used.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Its kick descriptor cannot be watched.
    #[error("its kick descriptor cannot be watched: {0} (an eventfd is expected)")]
    Kick(io::Error),
    /// Its iothread is gone.
    #[error(transparent)]
    Stopped(#[from] event_loop::Stopped),
}

/// An older memory map that requests in flight still use.
struct Retired {
    epoch: u32,
    in_flight: u32,
    _memory: Arc<GuestMemory>,
}

/// A started queue.
pub(crate) struct Vring {
    name: String,
    ring: SplitQueue,
    queue: virtio_blk::Queue,
    node: Arc<Node>,
    memory: Arc<GuestMemory>,
    /// Generation of `memory`.
    epoch: u32,
    retired: Vec<Retired>,
    pub kick: Option<HandlerId>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    pub enabled: bool,
    pub broken: bool,
    /// Who waits for the queue to have drained, and hears the available index then.
    pub stopping: Option<Sender<u16>>,
    /// In the plane's list of queues to admit from; the guest's kicks are suppressed.
    pub active: bool,
    /// In the plane's list of queues that wait for room in an engine.
    pub stalled: bool,
    /// In the plane's list of queues with entries to publish.
    pub unpublished: bool,
}

/// The engines as a device sees them.
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

impl Vring {
    /// A queue that is not in any list yet. `token` is its place among the plane's.
    pub fn new(setup: VringSetup, token: u32) -> Result<(Self, Option<OwnedFd>), RingError> {
        let VringSetup {
            name,
            device,
            node,
            memory,
            layout,
            features,
            base,
            kick,
            call,
            err,
            enabled,
        } = setup;
        let size = layout.size;
        let ring = SplitQueue::new(&memory, layout, features, base)?;
        let vring = Vring {
            name,
            ring,
            queue: virtio_blk::Queue::new(device, size, token),
            node,
            memory,
            epoch: 0,
            retired: Vec::new(),
            kick: None,
            call,
            err,
            enabled,
            broken: false,
            stopping: None,
            active: false,
            stalled: false,
            unpublished: false,
        };
        Ok((vring, kick))
    }

    /// Whether requests may be taken from it.
    pub fn runs(&self) -> bool {
        self.enabled && !self.broken && self.stopping.is_none()
    }

    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    #[inline]
    pub fn has_available(&self) -> bool {
        self.ring.has_available()
    }

    pub fn disable_kicks(&mut self) {
        self.ring.disable_kicks();
    }

    pub fn enable_kicks(&mut self) -> bool {
        self.ring.enable_kicks()
    }

    pub fn next_avail(&self) -> u16 {
        self.ring.next_avail()
    }

    /// Phase 4 of one queue. `None`: the guest broke it, and was told.
    #[inline]
    pub fn admit(&mut self, chain: &mut Chain, engines: &mut Engines) -> Option<Admission> {
        let mut sink = NodeSink {
            engines,
            node: &self.node,
        };
        let admission = self.queue.admit(
            &mut self.ring,
            &self.memory,
            self.epoch,
            chain,
            &mut sink,
            ADMIT_BUDGET,
        );
        match admission {
            Ok(admission) => Some(admission),
            Err(error) => {
                self.break_down(&error);
                None
            }
        }
    }

    /// Whether the last admission answered something by itself.
    #[inline]
    pub fn take_answered(&mut self) -> bool {
        self.queue.take_answered()
    }

    /// Phase 2 of one block request.
    #[inline]
    pub fn complete(&mut self, slot: u32, result: Result<(), engine::Errno>) {
        let Finished { requests, epoch } = self.queue.complete(&mut self.ring, slot, result);
        if epoch != self.epoch {
            self.release(epoch, requests);
        }
    }

    /// Phase 3 of one queue: one index, at most one signal.
    #[inline]
    pub fn publish(&mut self) {
        if self.ring.publish()
            && let Some(call) = &self.call
        {
            signal(call);
        }
    }

    /// The guest's memory is mapped anew. Requests in flight keep the map that they came with.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        let remapped = self.ring.remap(&memory);
        let old = std::mem::replace(&mut self.memory, memory);
        let older: u32 = self.retired.iter().map(|retired| retired.in_flight).sum();
        let in_flight = self.queue.in_flight() - older;
        if in_flight > 0 {
            self.retired.push(Retired {
                epoch: self.epoch,
                in_flight,
                _memory: old,
            });
        }
        self.epoch = self.epoch.wrapping_add(1);
        if let Err(error) = remapped {
            self.break_down(&error.into());
        }
    }

    fn release(&mut self, epoch: u32, requests: u32) {
        if let Some(index) = self
            .retired
            .iter()
            .position(|retired| retired.epoch == epoch)
        {
            self.retired[index].in_flight -= requests;
            if self.retired[index].in_flight == 0 {
                self.retired.swap_remove(index);
            }
        }
    }

    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        // What was signalled on the old descriptor may not have been seen by whoever waits on the
        // new one: a signal too many is harmless, one too few is not.
        if let Some(call) = &self.call {
            signal(call);
        }
    }

    pub fn set_err(&mut self, err: Option<OwnedFd>) {
        self.err = err;
    }

    /// The guest broke the queue: it alone stands still from here on.
    fn break_down(&mut self, error: &virtio_blk::AdmitError) {
        if self.broken {
            return;
        }
        self.broken = true;
        tracing::error!(
            queue = self.name, %error,
            "the guest's driver broke this queue: it is stopped until the driver resets the device"
        );
        if let Some(err) = &self.err {
            signal(err);
        }
    }
}

/// A full counter (EAGAIN) is a signal that is pending already; any other error is the front-end's
/// own doing.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
