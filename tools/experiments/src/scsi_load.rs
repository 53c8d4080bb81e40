//! The same load on a SCSI disk, behind a virtio SCSI controller or behind an LSI53C895A.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bench::client::{Commands, Doorbells, DriverRing, Kind, Layout, Queue, Session, SharedMemory};
use bench::load::{Driver, Load, Measured, Plan, Times, Walk, drive, scatter};
use bench::{Error, Result};
use lsi_driver::program::program;

use crate::lsi::{Bus, ChipQueue, ControlBlocks, Slot};
use crate::virtio_scsi::{FIRST_REQUEST_QUEUE, ScsiBuffers, VirtioScsi};

/// Options of the LSI53C895A driver for sending requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LsiRequestOptions {
    /// Who has the SCSI bus while the disk works.
    pub bus: Bus,
    /// Requests are cut into commands of so many bytes, one after the other; 0: they are not.
    pub piece_bytes: u32,
}

/// Puts `load` on target 0, LUN 0 of the virtio SCSI controller behind `stream`, through one queue, as [`bench::load::measure`] does.
pub(crate) fn measure_virtio_scsi(
    stream: UnixStream,
    load: &Load,
    times: Times,
    pid: Option<u32>,
) -> Result<Measured> {
    let mut session = Session::negotiate_scsi(stream)?;
    let mut layout = Layout::default();
    let place = layout.queue(ScsiBuffers::queue_size(load.depth));
    let buffers = ScsiBuffers::place(&mut layout, load.depth, load.block_bytes);
    let memory = SharedMemory::new(layout.len_bytes())?;
    session.share(&memory)?;
    let doorbells = Doorbells::new()?;
    session.start_queue(FIRST_REQUEST_QUEUE, &memory, place, &doorbells)?;
    session.settle()?;
    let event_idx = session.agreed.event_idx();
    let queue = DriverRing::new(&memory, place, event_idx, &doorbells);
    let commands = VirtioScsi::prepare(&memory, place, buffers);
    let measured = run(queue, commands, 1, session.socket(), load, times, pid)?;
    session.stop_queue(FIRST_REQUEST_QUEUE)?;
    Ok(measured)
}

/// The same for the LSI53C895A behind `stream`. Where requests are cut, a piece counts as a request.
pub(crate) fn measure_lsi(
    stream: UnixStream,
    manner: LsiRequestOptions,
    load: &Load,
    times: Times,
    pid: Option<u32>,
) -> Result<Measured> {
    let piece_bytes = match manner.piece_bytes {
        0 => load.block_bytes,
        bytes => bytes,
    };
    let memory = SharedMemory::new(ControlBlocks::memory_bytes(load.depth, piece_bytes))?;
    let socket = stream
        .try_clone()
        .map_err(Error::io("watch the server's socket"))?;
    let slot = Slot::plug(stream, &memory);
    let program = program();
    let blocks = ControlBlocks::prepare(&memory, &program, load.depth, piece_bytes, manner.bus);
    let queue = ChipQueue::start(slot, &memory, &program)?;
    let pieces = load.block_bytes / piece_bytes;
    run(queue, blocks, pieces, socket.as_fd(), load, times, pid)
}

fn run<Q: Queue + Send, R: Commands + Send>(
    mut queue: Q,
    mut commands: R,
    pieces: u32,
    socket: BorrowedFd<'_>,
    load: &Load,
    times: Times,
    pid: Option<u32>,
) -> Result<Measured> {
    clear_attentions(&mut queue, &mut commands)?;
    if load.pattern.writes() {
        scatter(&commands);
    }
    // The size of the disk is known: it is the load's span.
    let blocks = load.blocks_of(load.span_bytes)?;
    let plan = Pieces {
        walk: Walk::new(load.pattern, blocks, 0, 1),
        count: pieces,
        slots: vec![(0, Kind::Read, 0); load.depth.into()],
    };
    let mut drivers = [Driver::new(queue, commands, plan)];
    drive(&mut drivers, socket, load, times, pid)
}

/// Reads until the disk has nothing more to complain of, one thing for each command (SAM-5, 5.14).
fn clear_attentions(queue: &mut impl Queue, commands: &mut impl Commands) -> Result<()> {
    const ANSWER_LIMIT: Duration = Duration::from_secs(10);
    const MAX_ATTENTIONS: usize = 8;
    queue.suppress_calls();
    for _ in 0..MAX_ATTENTIONS {
        queue.push(commands.aim(0, Kind::Read, 0))?;
        queue.publish()?;
        let since = Instant::now();
        while queue.completed() == 0 {
            if since.elapsed() > ANSWER_LIMIT {
                return Err(Error::Requests("the SCSI disk does not answer".to_owned()));
            }
            std::thread::yield_now();
        }
        if commands.completed(queue.pop()).is_ok() {
            return Ok(());
        }
    }
    Err(Error::Requests("the SCSI disk cannot be read".to_owned()))
}

/// A walk over blocks, each in pieces: the next one of a slot is sent when the one before is done.
struct Pieces {
    walk: Walk,
    count: u32,
    /// By slot: the next piece, what to do with it, and how many are left.
    slots: Vec<(u64, Kind, u32)>,
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
