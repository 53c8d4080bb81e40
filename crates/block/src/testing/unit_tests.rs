//! Nodes and a loop for unit tests of this crate.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Completion, Op, Request};

use crate::route::{Carrier, FileTarget};
use crate::{
    Aio, AttachedDisk, BackendSettings, FileOptions, IoContext, Locking, Node, NodeOptions,
    NullOptions,
};

/// A file with this content, through the page cache and without a lock.
pub(crate) fn file(path: &Path, bytes: &[u8], aio: Aio) -> Arc<Node> {
    std::fs::write(path, bytes).unwrap();
    let options = FileOptions {
        path: path.to_owned(),
        direct: false,
        no_flush: false,
        unmap: true,
        aio,
        aio_max_batch: 0,
        locking: Locking::Off,
        force_share: false,
    };
    Node::open("file", false, &NodeOptions::File(options)).unwrap()
}

/// A null disk that does not change memory.
pub(crate) fn null() -> Arc<Node> {
    let options = NullOptions {
        size: 1 << 20,
        read_zeroes: false,
        latency_ns: 0,
    };
    Node::open("null", false, &NodeOptions::Null(options)).unwrap()
}

/// A target that is a whole file, with this carrier.
pub(crate) fn target(path: &Path, carrier: Carrier) -> FileTarget {
    let node = file(path, &[0; 8192], Aio::IoUring);
    FileTarget {
        file: node.driver.file().unwrap().clone(),
        carrier,
        base: 0,
        unmap: true,
    }
}

/// The I/O of an iothread without a loop.
pub(crate) fn io() -> IoContext {
    IoContext::new(BackendSettings::default(), Arc::new(|| ())).unwrap()
}

/// Attaches to a node; nothing watches the descriptors of engines.
pub(crate) fn attach(io: &mut IoContext, node: &Arc<Node>) -> AttachedDisk {
    io.attach(node, &mut |_| Ok(()))
}

/// Submits a request with one segment, or none if there is no data. The memory is never freed: a test that fails leaves it
/// in flight.
pub(crate) fn submit(
    io: &mut IoContext,
    disk: &AttachedDisk,
    (op, offset): (Op, u64),
    data: Vec<u8>,
    token: u64,
) -> &'static [u8] {
    let memory: &'static mut [u8] = data.leak();
    let segment = vec![libc::iovec {
        iov_base: memory.as_mut_ptr().cast(),
        iov_len: memory.len(),
    }];
    let request = Request {
        op,
        fua: false,
        offset,
        len: memory.len() as u64,
        iov: segment.leak().as_mut_ptr(),
        iov_count: u32::from(!memory.is_empty()),
        token,
    };
    assert!(io.room(disk) > 0);
    // SAFETY: list and memory are never freed, and are read only after the completion.
    unsafe { io.submit(disk, request) }.unwrap();
    memory
}

/// Runs the phases of an iothread until so many requests have completed.
pub(crate) fn run_until_completed(io: &mut IoContext, count: usize) -> Vec<Completion> {
    let (begin, mut done) = (Instant::now(), Vec::new());
    while done.len() < count {
        assert!(begin.elapsed() < Duration::from_secs(60), "not complete");
        io.poll_tasks_and_submit();
        io.reap_and_poll_tasks(&mut done);
        std::thread::yield_now();
    }
    done
}
