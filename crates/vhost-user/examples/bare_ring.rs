//! A vhost-user-blk server with nothing behind its rings: how fast anything could answer here.
//!
//! ```text
//! cargo build --release -p vhost-user --example bare_ring
//! taskset -c 0 target/release/examples/bare_ring /tmp/bare.sock &
//! taskset -c 1 blockplane bench run /tmp/bare.sock --depth 1
//! ```
//!
//! For each queue that a front-end starts one thread spins until it is stopped. It takes a chain off the
//! split ring, reads the request's header, writes "done" into the status byte and publishes the
//! chain at once. There is no device, no disk and no other queue; it never sleeps, is never kicked and
//! calls only when asked to. What it costs is what two processors need to hand each other the cache
//! lines of a request.

use std::hint;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, park, spawn};

use listener::Listener;
use vhost_user::{QueueSetup, Server, StartError, StartedQueue, Target};
use virtqueue::{Chain, GuestMemory, RingError, SplitQueue};

/// 1 GiB, as `bench` gives its null disks.
const SECTORS: u64 = 1 << 21;
const HEADER_BYTES: usize = 16;
const STATUS_OK: u8 = 0;

struct BareDisk;

impl Target for BareDisk {
    fn name(&self) -> &str {
        "bare ring"
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

    /// The capacity is all that a disk without features says.
    fn config(&self) -> Vec<u8> {
        SECTORS.to_le_bytes().to_vec()
    }

    fn write_config(&self, _: usize, _: &[u8], _: &dyn Fn()) -> bool {
        false
    }

    fn reset(&self) {}

    fn start_queue(&self, setup: QueueSetup) -> Result<Box<dyn StartedQueue>, StartError> {
        // No more than the lower half: a split queue's.
        let base = (setup.base & 0xffff) as u16;
        let ring = SplitQueue::new(&setup.memory, setup.layout, setup.features, base)?;
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let spinner = spawn(move || {
            spin(ring, &setup.memory, setup.call.as_ref(), &seen).unwrap_or_else(|error| {
                eprintln!("bare_ring: the front-end broke its queue: {error}");
                0
            })
        });
        Ok(Box::new(Spinning {
            ended,
            spinner: Some(spinner),
        }))
    }
}

/// Answers until it is told to end; where the queue stands then.
fn spin(
    mut ring: SplitQueue,
    memory: &GuestMemory,
    call: Option<&OwnedFd>,
    ended: &AtomicBool,
) -> Result<u16, RingError> {
    let mut chain = Chain::new();
    ring.disable_kicks();
    while !ended.load(Ordering::Relaxed) {
        while let Some(head) = ring.pop(memory, &mut chain)? {
            let written = answer(&chain);
            ring.push(head, written);
            if ring.publish()
                && let Some(call) = call
            {
                // A full counter is as good a call.
                let _ = rustix::io::write(call, &1u64.to_ne_bytes());
            }
        }
    }
    Ok(ring.next_avail())
}

/// Reads the header, as any server must, and writes the status; how many bytes the chain says are
/// written.
fn answer(chain: &Chain) -> u32 {
    if let Some(header) = chain.readable().first()
        && header.iov_len >= HEADER_BYTES
    {
        // SAFETY: 16 bytes of guest memory that the chain has checked, mapped as long as `memory`.
        hint::black_box(unsafe { header.iov_base.cast::<[u64; 2]>().read_unaligned() });
    }
    if let Some(status) = chain.writable().last()
        && status.iov_len > 0
    {
        // SAFETY: the last byte of a buffer that the chain has checked, as above.
        unsafe {
            let last = status.iov_base.cast::<u8>().add(status.iov_len - 1);
            last.write_volatile(STATUS_OK);
        }
    }
    u32::try_from(chain.writable_len()).unwrap_or(u32::MAX)
}

struct Spinning {
    ended: Arc<AtomicBool>,
    spinner: Option<JoinHandle<u16>>,
}

impl Spinning {
    fn end(&mut self) -> Option<u32> {
        self.ended.store(true, Ordering::Relaxed);
        let base = self.spinner.take()?.join().ok()?;
        Some(u32::from(base))
    }
}

/// A front-end that measures changes nothing while its queue runs: all but the end is ignored.
impl StartedQueue for Spinning {
    fn enable(&self, _: bool) {}

    fn set_memory(&self, _: Arc<GuestMemory>) {}

    fn settle(&self) {}

    fn set_call(&self, _: Option<OwnedFd>) {}

    fn set_err(&self, _: Option<OwnedFd>) {}

    fn set_kick(&self, _: Option<OwnedFd>) -> Result<(), StartError> {
        Ok(())
    }

    fn stop(mut self: Box<Self>) -> Option<u32> {
        self.end()
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.end();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.ok_or("usage: bare_ring SOCKET")?;
    let _server = Server::spawn(Listener::bind(&path)?, Arc::new(BareDisk))?;
    // Ended by a signal; who starts it knows when.
    loop {
        park();
    }
}
