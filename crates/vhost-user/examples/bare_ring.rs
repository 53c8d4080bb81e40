//! A baseline for measurements: a vhost-user-blk server with nothing behind its rings, as fast as any server can answer.
//!
//! ```text
//! cargo build --release -p vhost-user --example bare_ring
//! taskset -c 0 target/release/examples/bare_ring /tmp/bare.sock &
//! taskset -c 1 blockplane-bench run /tmp/bare.sock --depth 1
//! ```
//!
//! For each queue that a front-end starts, a thread spins until the queue stops. It pops a chain from the
//! split ring, reads the request's header, writes success into the status byte and publishes the
//! chain at once. There is no device, no disk and no other queue; it never sleeps, is never kicked and
//! signals only if the driver wants that. Its cost is that of two processors exchanging the cache
//! lines of a request.

mod bare;

use std::hint;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::park;

use unix_socket::listener::Listener;
use vhost_user::{ControlThreads, Server};
use virtqueue::queue_setup::QueueSetup;
use virtqueue::{Chain, RingError, SplitRing};

use bare::{BareDisk, STATUS_OK, StopFlag, signal};

/// 1 GiB, as `blockplane-bench` gives its null disks.
const SECTORS: u64 = 1 << 21;
const HEADER_BYTES: usize = 16;

/// Completes requests until the queue is to stop.
fn spin(ring: &mut SplitRing, setup: &QueueSetup, stop: &StopFlag) -> Result<(), RingError> {
    let mut chain = Chain::new();
    ring.disable_kicks();
    while !stop.is_set() {
        while let Some(head) = ring.pop(&setup.memory, &mut chain)? {
            let written = answer(&chain);
            ring.push(head, written);
            if ring.publish()
                && let Some(call) = &setup.descriptors.call
            {
                signal(call);
            }
        }
    }
    Ok(())
}

/// Reads the header, as any server must, and writes the status. Returns the length of the chain's writable
/// buffers.
fn answer(chain: &Chain) -> u32 {
    if let Some(header) = chain.readable().first()
        && header.iov_len >= HEADER_BYTES
    {
        // SAFETY: 16 bytes of guest memory that the chain has checked, mapped as long as the queue's setup.
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

/// Serves front-ends on the socket of the command line until a signal ends the process.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.ok_or("usage: bare_ring SOCKET")?;
    let disk = BareDisk {
        name: "bare ring",
        sectors: SECTORS,
        serve: Arc::new(spin),
    };
    let threads = Arc::new(ControlThreads::start()?);
    let _server = Server::start(&threads, Listener::bind(&path)?, Arc::new(disk))?;
    // It runs until a signal ends it.
    loop {
        park();
    }
}
