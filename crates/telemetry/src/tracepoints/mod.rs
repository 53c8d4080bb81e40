//! Static tracepoints (USDT) of provider `blockplane`: what `perf` and `bpftrace` attach to in a running daemon.
//!
//! While no tracer is attached, a probe costs the comparison of a 16-bit number. The kernel increments that number for each
//! tracer (a *semaphore*), so arguments are computed only while one is attached, on a cold path:
//!
//! ```ignore
//! if telemetry::tracepoints::reap::enabled() {
//!     telemetry::tracepoints::reap::fire(3);
//! }
//! ```
//!
//! Probes do not have the name of the iothread: it is the thread's. `docs/tracing.md` describes them for users, with examples;
//! the `elf_note` module has the format by which tools find them. On other processors than x86-64 no probe is ever enabled.

mod elf_note;

use elf_note::probes;

probes! {
    /// The guest kicked a queue.
    kick(export: str, queue: u64);

    /// A request was popped from its ring: the fields of its header, checked or not. `head` is the descriptor that it
    /// begins with (packed rings: the driver's name for it), and no other request's until this one is finished. `bytes`
    /// are those of the data, without header and status.
    request_start(export: str, queue: u64, head: u64, kind: u64, sector: u64, bytes: u64);

    /// A request is submitted to the disk, together with those that were merged into it.
    request_submit(export: str, queue: u64, head: u64, kind: u64, sector: u64, bytes: u64);

    /// The disk has completed a request. `latency_ns` is the time since it was popped from the ring.
    request_complete(export: str, queue: u64, head: u64, kind: u64, status: u64, latency_ns: u64);

    /// A request was answered without the disk.
    request_answer(export: str, queue: u64, head: u64, status: u64);

    /// A SCSI command was popped from its ring, right after its `request_start`: its target, LUN and operation code.
    scsi_command(export: str, queue: u64, head: u64, target: u64, lun: u64, opcode: u64);

    /// A SCSI command has completed: the controller's response, the unit's status, and its sense data as `0xKKCCQQ` (key, code, qualifier).
    scsi_status(export: str, queue: u64, head: u64, response: u64, status: u64, sense: u64);

    /// A request begins to wait at a throttled node. It is a read (0) or a change (1). `limit` makes it wait longest, in the
    /// order of `block::LimitKind`. It passes after `expected_ns` if no other queue wants tokens.
    throttle_wait(node: str, direction: u64, bytes: u64, limit: u64, expected_ns: u64);

    /// It no longer waits there, after so long.
    throttle_pass(node: str, direction: u64, bytes: u64, waited_ns: u64);

    /// A queue publishes so many used entries to its guest, and signals the guest or not.
    notify(export: str, queue: u64, completions: u64, signalled: u64);

    /// Requests are about to be submitted to the kernel, by io_submit(2) or io_uring_enter(2), or one to librbd.
    submit_begin(engine: u64, requests: u64);

    /// It took so many of them, or none with a negative error number.
    submit_end(engine: u64, requests: u64, taken: i64);

    /// So many completions of block requests were reaped.
    reap(completions: u64);

    /// An iothread begins to poll, for so long at most.
    poll_begin(window_ns: u64);

    /// Polling has ended, with work or without.
    poll_end(found: u64, spent_ns: u64);

    /// An iothread blocks; -1: without a timeout.
    sleep(timeout_ns: i64);

    /// The iothread runs again, with so many descriptors ready.
    wake(events: u64);
}

/// Linux AIO in `submit_begin` and `submit_end`.
pub const LINUX_AIO: u64 = 0;

/// io_uring in `submit_begin` and `submit_end`.
pub const IO_URING: u64 = 1;

/// librbd in `submit_begin` and `submit_end`.
pub const LIBRBD: u64 = 2;

/// No limit in `throttle_wait`: the request only waits for its turn.
pub const NO_LIMIT: u64 = 6;

/// The status of a request that succeeded, or not: `VIRTIO_BLK_S_OK` and `VIRTIO_BLK_S_IOERR` (VIRTIO, section 5.2.6).
#[must_use]
pub fn blk_status_from_success(succeeded: bool) -> u64 {
    u64::from(!succeeded)
}
