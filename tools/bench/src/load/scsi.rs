//! The same load on a SCSI disk, behind a virtio SCSI controller or behind an LSI53C895A.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lsi_driver::program::program;

use super::driver::Driver;
use super::plan::Plan;
use super::{Load, Measured, Walk, drive, started_server, usage};
use crate::client::lsi::{Bus, ChipQueue, ControlBlocks, Slot};
use crate::client::{
    Capacity, Commands, Doorbells, DriverRing, FIRST_REQUEST_QUEUE, Kind, Layout, Queue,
    ScsiBuffers, ScsiCommands, Session, SharedMemory, VirtioScsi, Virtqueue, introduce,
};
use crate::error::{Error, Result};

/// Options of the LSI53C895A driver for sending requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LsiRequestOptions {
    /// Who has the SCSI bus while the disk works.
    pub bus: Bus,
    /// Requests are cut into commands of so many bytes, one after the other; 0: they are not.
    pub piece_bytes: u32,
}

/// Puts `load` on target 0, LUN 0 of the virtio SCSI controller behind `stream`, through one queue, as [`super::measure`] does.
///
/// # Errors
/// As for [`super::measure`].
pub fn measure_virtio_scsi(
    stream: UnixStream,
    load: &Load,
    warm_up: Duration,
    time: Duration,
    server: Option<u32>,
) -> Result<Measured> {
    let mut session = Session::negotiate_scsi(stream)?;
    let mut layout = Layout::new();
    let place = layout.queue(ScsiBuffers::queue_size(load.depth));
    let buffers = ScsiBuffers::place(&mut layout, load.depth, load.block_bytes);
    let memory = touched(layout.len_bytes())?;
    session.share(&memory)?;
    let doorbells = Doorbells::new()?;
    session.start_queue(FIRST_REQUEST_QUEUE, &memory, place, &doorbells)?;
    session.settle()?;
    let ring = DriverRing::new(&memory, place, session.agreed().event_idx());
    let mut queue = Virtqueue::new(ring, &doorbells);
    let mut commands = VirtioScsi::prepare(&memory, place, buffers);
    let walk = walk(load, introduce(&mut queue, &mut commands)?)?;
    let driver = Driver::new(queue, commands, walk);
    let measured = run(
        driver,
        session.socket().as_fd(),
        load,
        warm_up,
        time,
        server,
    )?;
    session.stop_queue(FIRST_REQUEST_QUEUE)?;
    Ok(measured)
}

/// The same for the LSI53C895A behind `stream`. Where requests are cut, a piece counts as a request.
///
/// # Errors
/// As for [`super::measure`].
pub fn measure_lsi(
    stream: UnixStream,
    manner: LsiRequestOptions,
    load: &Load,
    warm_up: Duration,
    time: Duration,
    server: Option<u32>,
) -> Result<Measured> {
    let piece_bytes = match manner.piece_bytes {
        0 => load.block_bytes,
        bytes => bytes,
    };
    let memory = touched(ControlBlocks::memory_bytes(load.depth, piece_bytes))?;
    let slot = Slot::plug(stream, &memory)?;
    let socket = slot.socket()?;
    let program = program();
    let mut blocks =
        ControlBlocks::prepare(&memory, &program, load.depth, piece_bytes, manner.bus)?;
    let mut queue = ChipQueue::start(slot, &memory, &program)?;
    let walk = walk(load, introduce(&mut queue, &mut blocks)?)?;
    let pieces = Pieces::new(walk, load.block_bytes / piece_bytes, load.depth);
    let driver = Driver::new(queue, blocks, pieces);
    run(driver, socket.as_fd(), load, warm_up, time, server)
}

/// Every page is there before anything is measured.
fn touched(bytes: usize) -> Result<SharedMemory> {
    let memory = SharedMemory::new(bytes)?;
    for page in (0..bytes).step_by(Layout::whole_pages(1)) {
        memory.u8s(page, 1)[0].store(0, Ordering::Relaxed);
    }
    Ok(memory)
}

fn walk(load: &Load, capacity: Capacity) -> Result<Walk> {
    if !load.block_bytes.is_multiple_of(capacity.block_bytes) {
        return Err(Error::Unsuitable(format!(
            "requests of {} bytes are not made of the disk's blocks of {}",
            load.block_bytes, capacity.block_bytes
        )));
    }
    Ok(Walk::new(
        load.pattern,
        load.blocks_of(capacity.bytes)?,
        0,
        1,
    ))
}

fn run<Q: Queue + Send, R: ScsiCommands + Send, P: Plan + Send>(
    mut driver: Driver<Q, R, P>,
    socket: std::os::fd::BorrowedFd<'_>,
    load: &Load,
    warm_up: Duration,
    time: Duration,
    server: Option<u32>,
) -> Result<Measured> {
    let block_bytes = driver.requests().block_bytes();
    if load.pattern.writes() {
        started_server::scatter(driver.requests());
    }
    let mut usage = usage::UsageSampler::new(server);
    let drivers = std::slice::from_mut(&mut driver);
    let threads = drive(drivers, socket, load, warm_up, time, |phase| {
        usage.look(phase);
        Ok(())
    })?;
    Ok(Measured {
        block_bytes,
        threads,
        server: usage.used(),
    })
}

/// A walk over blocks, each in pieces: the next one of a slot is sent when the one before is done.
struct Pieces {
    walk: Walk,
    count: u32,
    /// By slot: the next piece, what to do with it, and how many are left.
    slots: Vec<(u64, Kind, u32)>,
}

impl Pieces {
    fn new(walk: Walk, count: u32, depth: u16) -> Self {
        Pieces {
            walk,
            count,
            slots: vec![(0, Kind::Read, 0); depth.into()],
        }
    }
}

impl Plan for Pieces {
    #[inline]
    fn next(&mut self, slot: usize, _requests: &impl Commands) -> Option<(u64, Kind)> {
        let (piece, kind, left) = &mut self.slots[slot];
        if *left == 0 {
            let (block, wanted) = self.walk.step();
            (*piece, *kind, *left) = (block * u64::from(self.count), wanted, self.count);
        }
        *left -= 1;
        *piece += 1;
        Some((*piece - 1, *kind))
    }

    #[inline]
    fn done(&mut self, _slot: usize, _requests: &impl Commands) -> Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }
}
