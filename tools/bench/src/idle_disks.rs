//! Idle disks: all their queues are started, and each was used once.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::client::{
    Commands, Doorbells, DriverRing, Kind, Layout, Requests, Session, Shape, SharedMemory,
};
use crate::error::{Error, Result};
use crate::limits::raise_descriptor_limit;
use crate::server::{Disk, FrontEnd, Server};
use crate::storage::Backing;

/// A queue that is started and never kicked costs less than one that a guest has used.
const BLOCK_BYTES: u32 = 4096;
/// For one read.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The front-ends of idle disks. The queues stop when it is dropped.
pub(crate) struct IdleDisks {
    _members: Vec<(Session, SharedMemory, Doorbells)>,
}

/// One of the disks.
pub(crate) fn disk(queues: u8) -> Disk {
    Disk {
        backing: Backing::Null,
        num_queues: u16::from(queues),
        writable: false,
        front_end: FrontEnd::Blk,
        throttle_groups: Vec::new(),
    }
}

/// Starts all queues of the disks 1 to `disks` of a server, and reads once through each.
pub(crate) fn gather(server: &mut Server, disks: u16, queues: u8) -> Result<IdleDisks> {
    let _ = raise_descriptor_limit();
    let members = (1..=usize::from(disks)).map(|disk| member(server, disk, queues));
    Ok(IdleDisks {
        _members: members.collect::<Result<_>>()?,
    })
}

fn member(
    server: &mut Server,
    disk: usize,
    queues: u8,
) -> Result<(Session, SharedMemory, Doorbells)> {
    let mut session = Session::negotiate(server.connect(disk)?)?;
    let shape = Shape::new(1, BLOCK_BYTES, u32::MAX, false)?;
    let mut layout = Layout::new();
    let places: Vec<_> = (0..queues)
        .map(|_| (layout.queue(shape.queue_size()), shape.place(&mut layout)))
        .collect();
    let memory = SharedMemory::new(layout.len_bytes())?;
    session.share(&memory)?;
    // One pair for all of them here; the server has descriptors of its own for each queue.
    let doorbells = Doorbells::new()?;
    let event_idx = session.agreed().event_idx();
    for (index, (place, buffers)) in (0..).zip(places) {
        // As a guest's driver does.
        memory.u16s(place.avail, 1)[0].store(0, Ordering::Relaxed);
        session.start_queue(index, &memory, place, &doorbells)?;
        let mut ring = DriverRing::new(&memory, place, event_idx);
        let mut requests = Requests::prepare(&memory, place, buffers, shape);
        ring.push(requests.aim(0, Kind::Read, 0));
        if ring.publish() {
            doorbells.kick();
        }
        let since = Instant::now();
        while ring.completed() == 0 {
            if since.elapsed() > ANSWER_LIMIT {
                return Err(Error::Requests(format!(
                    "queue {index} of disk {disk} has not answered for {ANSWER_LIMIT:?}"
                )));
            }
            std::thread::yield_now();
        }
        requests.completed(ring.pop())?;
    }
    Ok((session, memory, doorbells))
}
