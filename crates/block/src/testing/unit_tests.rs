//! Nodes and a loop for unit tests of this crate.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use engine::{Completion, Op, Request};
use test_support::deadline::Deadline;

use crate::route::{Carrier, FileTarget};
use crate::{
    Aio, AttachedDisk, BackendSettings, FaultRule, FaultRules, Faults, FileOptions, IoContext,
    Node, NodeOptions, NullOptions,
};

/// A file with this content, through the page cache and without a lock.
pub(crate) fn file(path: &Path, bytes: &[u8], aio: Aio) -> Arc<Node> {
    file_with_cache(path, bytes, aio, false)
}

/// The same; `direct`: not through the page cache.
pub(crate) fn file_with_cache(path: &Path, bytes: &[u8], aio: Aio, direct: bool) -> Arc<Node> {
    std::fs::write(path, bytes).unwrap();
    let options = FileOptions {
        direct,
        ..super::file_options(path, aio)
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

/// What lies behind this offset.
pub(crate) fn window(below: &Arc<Node>, offset: u64) -> Arc<Node> {
    Node::new_window("window", below, offset, None, false, true).unwrap()
}

/// Rules in this order.
pub(crate) fn rules<const N: usize>(rules: [FaultRule; N]) -> FaultRules {
    FaultRules {
        rules: rules.into(),
        seed: 1,
    }
}

/// A filter with these rules.
pub(crate) fn filter<const N: usize>(below: &Arc<Node>, list: [FaultRule; N]) -> Arc<Node> {
    Node::new_filter("filter", below, Faults::new(rules(list)), false, true)
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

/// A context that is attached to a node.
pub(crate) fn attached(node: &Arc<Node>) -> (IoContext, AttachedDisk) {
    let mut io = io();
    let disk = attach(&mut io, node);
    (io, disk)
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
    // Aligned as direct I/O needs it.
    let memory: &'static mut [u8] = vec![0; data.len() + 4096].leak();
    let begin = memory.as_ptr().align_offset(4096);
    let memory = &mut memory[begin..begin + data.len()];
    memory.copy_from_slice(&data);
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

/// Submits a request that has a length and no data, with token 9.
pub(crate) fn submit_range(io: &mut IoContext, disk: &AttachedDisk, op: Op, range: Range<u64>) {
    let request = Request::without_data(op, range.start, range.end - range.start, 9);
    // SAFETY: there is no memory.
    unsafe { io.submit(disk, request) }.unwrap();
}

/// Writes 4096 of these bytes.
pub(crate) fn write(io: &mut IoContext, disk: &AttachedDisk, offset: u64, byte: u8) {
    submit(io, disk, (Op::Write, offset), vec![byte; 4096], 1);
    assert_eq!(run_until_completed(io, 1)[0].result, Ok(()));
}

/// Runs the phases of an iothread until so many requests have completed.
pub(crate) fn run_until_completed(io: &mut IoContext, count: usize) -> Vec<Completion> {
    let (deadline, mut done) = (Deadline::default(), Vec::new());
    while done.len() < count {
        deadline.check("requests complete");
        io.poll_tasks_and_submit();
        io.reap_and_poll_tasks(&mut done);
        std::thread::yield_now();
    }
    done
}

/// Runs the phases a few times.
pub(crate) fn run_phases(io: &mut IoContext) -> Vec<Completion> {
    let mut done = Vec::new();
    for _ in 0..5 {
        io.poll_tasks_and_submit();
        io.reap_and_poll_tasks(&mut done);
    }
    done
}

/// Runs the phases until all that has not completed waits for something else than I/O of this context. Files are those of workers.
pub(crate) fn run_until_idle(io: &mut IoContext) -> Vec<Completion> {
    assert!(io.aio_stats().is_none() && io.ring_stats().is_none());
    let (deadline, mut done) = (Deadline::default(), Vec::new());
    loop {
        io.reap_and_poll_tasks(&mut done);
        io.poll_tasks_and_submit();
        if io.workers.in_flight_count() == 0 && !io.has_completions_or_woken_tasks() {
            return done;
        }
        deadline.check("I/O of workers ends");
        std::thread::yield_now();
    }
}
