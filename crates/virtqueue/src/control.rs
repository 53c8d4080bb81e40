//! Set-up of a queue, and commands for one that runs.
//!
//! The transport that has a front-end's connection sends them, and the iothread that runs the queue carries them out. Neither
//! knows the other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::{GuestMemory, InflightRegion, QueueLog, RingError, RingFeatures, RingLayout};

/// Settings that a queue is started with.
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

/// Descriptors that a queue is kicked with and signals with.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// Readable when the guest has added something; `None`: it will not kick.
    pub kick: Option<OwnedFd>,
    /// To signal the guest with, an eventfd that is set not to block; `None`: the guest polls.
    pub call: Option<OwnedFd>,
    /// To signal that the queue is broken, an eventfd that is set not to block.
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
    /// The iothread that was to run it is gone.
    #[error("the iothread has stopped")]
    Stopped,
}

/// A command for a queue. The sender of an answer is dropped if the queue is gone.
pub enum QueueCommand {
    /// Take requests, or do not.
    Enable(bool),
    /// The guest's memory is mapped anew; the answer says that the queue uses the new map for all that it takes from now on. The
    /// old one is kept as long as requests in flight need it.
    SetMemory(Arc<GuestMemory>, Sender<()>),
    /// Log what the queue writes to the guest's memory there, or do not; the answer says that it is so.
    SetLog(Option<QueueLog>, Sender<()>),
    /// Answer when all that was taken so far is done. The queue takes more meanwhile.
    Settle(Sender<()>),
    /// Answer with duplicates of the queue's descriptors, unless too many files are open.
    Descriptors(Sender<io::Result<Descriptors>>),
    /// Listen for kicks there; the answer says whether that is possible. The old descriptor is still watched if not.
    SetKick(Option<OwnedFd>, Sender<Result<(), StartError>>),
    /// Signal the guest there.
    SetCall(Option<OwnedFd>),
    /// Signal a broken queue there.
    SetErr(Option<OwnedFd>),
    /// Requests that wait after an error stay in the queue's record when it stops, if it has one: they are taken again when the
    /// queue is started next.
    LeaveParked,
}
