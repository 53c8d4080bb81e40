//! What a queue is started with, by whoever has its front-end's connection for whoever runs it. Neither knows the other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::{GuestMemory, InflightRegion, QueueLog, RingError, RingFeatures, RingLayout};

/// What a queue is started with.
pub struct QueueSetup {
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Where its rings are.
    pub layout: RingLayout,
    /// What the driver chose.
    pub features: RingFeatures,
    /// Where it stands, as `SET_VRING_BASE` says.
    pub base: u32,
    /// Where it records what is in flight, and what was in flight when another process had it; `None`: nowhere.
    pub inflight: Option<InflightRegion>,
    /// Where it logs what it writes to the guest's memory; `None`: nowhere.
    pub log: Option<QueueLog>,
    /// Its descriptors.
    pub descriptors: Descriptors,
    /// Whether requests are taken from the start.
    pub enabled: bool,
}

/// What a queue is kicked with and signals with.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// Readable when the guest has added something; `None`: it will not kick.
    pub kick: Option<OwnedFd>,
    /// To signal the guest with, an eventfd that is set not to block; `None`: the guest polls.
    pub call: Option<OwnedFd>,
    /// To tell that the queue is broken, an eventfd that is set not to block.
    pub err: Option<OwnedFd>,
}

/// Why a queue could not be started, or goes on with its old kick descriptor.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The driver put its rings where they cannot be used: the queue is broken, its connection is not.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The front-end did something that it must not.
    #[error("{0}")]
    FrontEnd(String),
    /// Its kick descriptor cannot be watched.
    #[error("its kick descriptor cannot be watched: {0} (an eventfd is expected)")]
    Kick(io::Error),
    /// What was to run it is gone.
    #[error("the iothread has stopped")]
    Stopped,
}
