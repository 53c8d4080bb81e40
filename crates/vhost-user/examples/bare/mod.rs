//! A disk that is one function, run by a thread per queue: what the bare servers have in common.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, spawn};

use rustix::event::{EventfdFlags, eventfd};
use vhost_user::{StartedQueue, Target};
use virtqueue::control::{QueueCommand, QueueSetup, StartError};
use virtqueue::{RingError, SplitRing};

/// What a status byte says of a request that was carried out.
pub const STATUS_OK: u8 = 0;

/// Serves a queue until it is told to end.
pub type Serve = dyn Fn(&mut SplitRing, &QueueSetup, &End) -> Result<(), RingError> + Send + Sync;

/// A disk with one split queue.
pub struct BareDisk {
    /// For messages.
    pub name: &'static str,
    /// Its size, 512 bytes each: all that a disk without features says of itself.
    pub sectors: u64,
    /// What it does.
    pub serve: Arc<Serve>,
}

impl Target for BareDisk {
    fn name(&self) -> &str {
        self.name
    }

    fn connected(&self, _: bool) {}

    fn features(&self) -> u64 {
        0
    }

    fn set_features(&self, _: u64, _: &dyn Fn()) {}

    fn num_queues(&self) -> u16 {
        1
    }

    fn max_queue_size(&self) -> u16 {
        1024
    }

    fn packed_queues(&self) -> bool {
        false
    }

    fn config(&self) -> Vec<u8> {
        self.sectors.to_le_bytes().to_vec()
    }

    fn write_config(&self, _: usize, _: &[u8], _: &dyn Fn()) -> bool {
        false
    }

    fn reset(&self) {}

    fn start_queue(&self, _: u16, setup: QueueSetup) -> Result<Box<dyn StartedQueue>, StartError> {
        // No more than the lower half: a split queue's.
        let base = (setup.base & 0xffff) as u16;
        let mut ring = SplitRing::new(&setup.memory, setup.layout, setup.features, base)?;
        let end = Arc::new(End::new()?);
        let (serve, seen, name) = (self.serve.clone(), end.clone(), self.name);
        let server = spawn(move || {
            if let Err(error) = serve(&mut ring, &setup, &seen) {
                eprintln!("{name}: the front-end broke its queue: {error}");
            }
            ring.next_avail()
        });
        Ok(Box::new(Serving {
            end,
            server: Some(server),
        }))
    }
}

/// Tells a thread that its queue ends.
pub struct End {
    said: AtomicBool,
    eventfd: OwnedFd,
}

impl End {
    fn new() -> Result<Self, StartError> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|errno| StartError::FrontEnd(format!("no eventfd for its queue: {errno}")))?;
        Ok(End {
            said: AtomicBool::new(false),
            eventfd,
        })
    }

    /// Whether it was told.
    pub fn said(&self) -> bool {
        self.said.load(Ordering::Relaxed)
    }

    fn say(&self) {
        self.said.store(true, Ordering::Relaxed);
        signal(&self.eventfd);
    }
}

/// To be waited on.
impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Adds to an eventfd. One that is full says as much.
pub fn signal(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

struct Serving {
    end: Arc<End>,
    server: Option<JoinHandle<u16>>,
}

impl Serving {
    fn end(&mut self) -> Option<u32> {
        self.end.say();
        let base = self.server.take()?.join().ok()?;
        Some(u32::from(base))
    }
}

/// A front-end that measures changes nothing while its queue runs: all but the end is ignored.
impl StartedQueue for Serving {
    fn send(&self, command: QueueCommand) {
        if let QueueCommand::SetKick(_, reply) = command {
            let _ = reply.send(Ok(()));
        }
    }

    fn renew(&self) -> Receiver<()> {
        unreachable!("nothing is exchanged")
    }

    fn begin_stop(mut self: Box<Self>) -> Receiver<u32> {
        let (reply, answer) = channel();
        if let Some(base) = self.end() {
            let _ = reply.send(base);
        }
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}
