//! Disks whose queues are all started and have nothing to do.

use bench::Result;
use bench::client::{Doorbells, Layout, Session, SharedMemory};
use bench::server::{Disk, Server};
use bench::storage::Backing;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Setup;

/// So many disks with so many queues each.
pub(crate) const DISKS: u16 = 99;
const QUEUES: u8 = 32;
/// Entries of a queue, which stays empty.
const QUEUE_SIZE: u16 = 128;

/// A disk's front-end that does nothing; its queues stop when it goes.
pub(crate) struct IdleQueues {
    _session: Session,
    _memory: SharedMemory,
    _doorbells: Doorbells,
}

/// One of the disks.
pub(crate) fn disk(setup: &Setup) -> Result<Disk> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    // Servers inherit it. It fails only where the limit is what it may be at most already.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    let storage = Backing::Null.storage(0, setup.places.room())?;
    Ok(Disk::virtio(&storage, None, QUEUES.into(), false))
}

/// Starts all queues of a disk. They share two eventfds here, and have their own descriptors of
/// them in the server: which is what it watches.
pub(crate) fn start(server: &mut Server, disk: usize) -> Result<IdleQueues> {
    let mut session = Session::negotiate(server.connect(disk)?, false)?;
    let mut layout = Layout::default();
    let places: Vec<_> = (0..QUEUES).map(|_| layout.queue(QUEUE_SIZE)).collect();
    let memory = SharedMemory::new(layout.len_bytes())?;
    session.share(&memory)?;
    let doorbells = Doorbells::new()?;
    for (index, place) in (0..).zip(places) {
        session.start_queue(index, &memory, place, &doorbells)?;
    }
    Ok(IdleQueues {
        _session: session,
        _memory: memory,
        _doorbells: doorbells,
    })
}
