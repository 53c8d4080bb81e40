//! Settings that a virtqueue is started with (memory, rings, base, kick and call descriptors), and the commands for one that runs:
//! enable, settle, replace its memory, log or descriptors.
//!
//! The transport of a front-end's connection sends them, and the iothread that runs the queue executes them. Neither depends on the
//! other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::{GuestMemory, InflightRegion, QueueDirtyLog, RingError, RingFeatures, RingLayout};

/// Settings that a queue is started with.
pub struct QueueSetup {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// The addresses of its rings.
    pub layout: RingLayout,
    /// The negotiated features.
    pub features: RingFeatures,
    /// Its base, as in `SET_VRING_BASE`.
    pub base: u32,
    /// Its in-flight region, which may have requests of an earlier process; `None`: requests are not recorded.
    pub inflight: Option<InflightRegion>,
    /// Its dirty log; `None`: writes are not logged.
    pub log: Option<QueueDirtyLog>,
    /// Its file descriptors for kicks and signals.
    pub descriptors: QueueFds,
    /// Whether it is enabled from the start.
    pub enabled: bool,
}

/// The file descriptors for the kicks and signals of a queue.
#[derive(Debug, Default)]
pub struct QueueFds {
    /// Readable when the guest has kicked; `None`: it does not kick.
    pub kick: Option<OwnedFd>,
    /// To signal the guest with, an eventfd that is set not to block; `None`: the guest polls.
    pub call: Option<OwnedFd>,
    /// To signal that the queue is broken, an eventfd that is set not to block.
    pub err: Option<OwnedFd>,
}

/// Error at the start of a queue, or at the change of its kick descriptor, which it keeps then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The driver's rings are unusable: the queue is broken, its connection is not.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The front-end broke the protocol.
    #[error("{0}")]
    FrontEnd(String),
    /// Its kick descriptor cannot be watched.
    #[error("its kick descriptor cannot be watched: {0} (an eventfd is expected)")]
    Kick(io::Error),
    /// The iothread that was to run it is gone.
    #[error("the iothread has stopped")]
    Stopped,
}

/// A command for a queue. The sender for its answer is dropped if the queue has stopped.
pub enum QueueCommand {
    /// Enable or disable the queue.
    Enable(bool),
    /// Replace the map of the guest's memory. The answer comes when the queue uses the new map for all requests that it admits from
    /// now on. The old one is kept as long as requests in flight need it.
    SetMemory(Arc<GuestMemory>, Sender<()>),
    /// Set or remove the dirty log. The answer comes when that is done.
    SetLog(Option<QueueDirtyLog>, Sender<()>),
    /// Answer when all requests that were admitted so far are done. The queue admits more meanwhile.
    Settle(Sender<()>),
    /// Answer with duplicates of the queue's descriptors, unless too many files are open.
    DuplicateFds(Sender<io::Result<QueueFds>>),
    /// Replace the kick descriptor; the answer is whether that is possible. The old one is still watched if not.
    SetKick(Option<OwnedFd>, Sender<Result<(), StartError>>),
    /// Replace the descriptor that signals the guest.
    SetCall(Option<OwnedFd>),
    /// Replace the descriptor that signals a broken queue.
    SetErr(Option<OwnedFd>),
    /// Leave parked requests in the in-flight region when the queue stops, if it has one: they are resubmitted when the
    /// queue is started next.
    LeaveParked,
}
