//! A vhost-user-blk disk with one queue, which one function serves on a thread of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, spawn};

use rustix::event::{EventfdFlags, eventfd};
use vhost_user::{StartedQueue, VirtioDevice};
use virtqueue::queue_setup::{QueueCommand, QueueSetup, StartError};
use virtqueue::{RingError, SplitRing};

/// The status byte of a successful request.
pub const STATUS_OK: u8 = 0;

/// Serves a queue until the flag is set.
pub type Serve =
    dyn Fn(&mut SplitRing, &QueueSetup, &StopFlag) -> Result<(), RingError> + Send + Sync;

/// A disk with one split queue.
pub struct BareDisk {
    /// For messages.
    pub name: &'static str,
    /// Its size in units of 512 bytes, which is all of its configuration space.
    pub sectors: u64,
    /// The function that serves its queue.
    pub serve: Arc<Serve>,
}

impl VirtioDevice for BareDisk {
    fn name(&self) -> &str {
        self.name
    }

    fn on_connection_change(&self, _: bool) {}

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

    fn offers_packed_queues(&self) -> bool {
        false
    }

    fn config_space(&self) -> Vec<u8> {
        self.sectors.to_le_bytes().to_vec()
    }

    fn write_config_space(&self, _: usize, _: &[u8], _: &dyn Fn()) -> bool {
        false
    }

    fn reset(&self) {}

    fn start_queue(&self, _: u16, setup: QueueSetup) -> Result<Box<dyn StartedQueue>, StartError> {
        // A split queue's base is the lower half.
        let base = (setup.base & 0xffff) as u16;
        let mut ring = SplitRing::new(&setup.memory, setup.layout, setup.features, base)?;
        let stop = Arc::new(StopFlag::new()?);
        let (serve, flag, name) = (self.serve.clone(), stop.clone(), self.name);
        let thread = spawn(move || {
            if let Err(error) = serve(&mut ring, &setup, &flag) {
                eprintln!("{name}: the front-end broke its queue: {error}");
            }
            ring.next_avail()
        });
        Ok(Box::new(RunningQueue {
            stop,
            thread: Some(thread),
        }))
    }
}

/// A request to a queue's thread to stop, with an eventfd to wait on.
pub struct StopFlag {
    set: AtomicBool,
    eventfd: OwnedFd,
}

impl StopFlag {
    fn new() -> Result<Self, StartError> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|errno| StartError::FrontEnd(format!("no eventfd for its queue: {errno}")))?;
        Ok(StopFlag {
            set: AtomicBool::new(false),
            eventfd,
        })
    }

    /// Whether the thread is to stop.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.set.store(true, Ordering::Relaxed);
        signal(&self.eventfd);
    }
}

/// Readable once the flag is set.
impl AsFd for StopFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Signals an eventfd. One whose counter is full is signalled already.
pub fn signal(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

struct RunningQueue {
    stop: Arc<StopFlag>,
    thread: Option<JoinHandle<u16>>,
}

impl RunningQueue {
    fn stop(&mut self) -> Option<u32> {
        self.stop.set();
        let base = self.thread.take()?.join().ok()?;
        Some(u32::from(base))
    }
}

/// Commands are ignored: a front-end that measures changes nothing while its queue runs.
impl StartedQueue for RunningQueue {
    fn send_command(&self, command: QueueCommand) {
        if let QueueCommand::SetKick(_, reply) = command {
            let _ = reply.send(Ok(()));
        }
    }

    fn switch_node(&self) -> Receiver<()> {
        unreachable!("nothing is exchanged")
    }

    fn begin_stop(mut self: Box<Self>) -> Receiver<u32> {
        let (sender, reply) = channel();
        if let Some(base) = self.stop() {
            let _ = sender.send(base);
        }
        reply
    }
}

impl Drop for RunningQueue {
    fn drop(&mut self) {
        self.stop();
    }
}
