//! Static tracepoints (USDT) of provider `blockplane`: what `perf` and `bpftrace` attach to in a running daemon.
//!
//! A probe costs a look at a 16-bit number while nobody is attached. The kernel counts that number up for each tracer
//! (a *semaphore*), so arguments are put together only for somebody who wants them, and the code for that lies out of
//! the way:
//!
//! ```
//! if telemetry::tracepoints::reap::enabled() {
//!     telemetry::tracepoints::reap::fire(3);
//! }
//! ```
//!
//! They carry no name of the iothread: the thread has it. What they mean to a user, with examples: `docs/tracing.md`.
//! How tools find them: the `note` module. Elsewhere than on x86-64 nothing is ever enabled.

mod note;

use note::probes;

probes! {
    /// The guest kicked a queue.
    kick(export: str, queue: u64);

    /// A request was taken off its ring: what its header asks for, checked or not. `head` is the descriptor that it
    /// begins with (packed rings: the driver's name for it), and no other request's until this one is finished. `bytes`
    /// are those of the data, without header and status.
    request_start(export: str, queue: u64, head: u64, kind: u64, sector: u64, bytes: u64);

    /// A request goes to the disk, together with those that were joined to it.
    request_submit(export: str, queue: u64, head: u64, kind: u64, sector: u64, bytes: u64);

    /// The disk has carried a request out. `latency_ns` is from when it was taken off the ring.
    request_complete(export: str, queue: u64, head: u64, kind: u64, status: u64, latency_ns: u64);

    /// A request was answered without asking the disk.
    request_answer(export: str, queue: u64, head: u64, status: u64);

    /// A SCSI command was taken off its ring, right after its `request_start`: whom it is for, and its operation code.
    scsi_command(export: str, queue: u64, head: u64, target: u64, lun: u64, opcode: u64);

    /// It is over: the controller's response, the unit's status, and its sense data as `0xKKCCQQ` (key, code, qualifier).
    scsi_status(export: str, queue: u64, head: u64, response: u64, status: u64, sense: u64);

    /// A queue shows its guest so many used entries, and signals it or not.
    notify(export: str, queue: u64, completions: u64, signalled: u64);

    /// Requests are about to be handed to the kernel, by io_submit(2) or io_uring_enter(2).
    submit_begin(engine: u64, requests: u64);

    /// The kernel took so many of them, or a negative error number says why none.
    submit_end(engine: u64, requests: u64, taken: i64);

    /// So many block requests have finished and were collected.
    reap(completions: u64);

    /// An iothread begins to poll, for so long at most.
    poll_begin(window_ns: u64);

    /// It has ended, with work or without.
    poll_end(found: u64, spent_ns: u64);

    /// An iothread blocks; -1: until something comes.
    sleep(timeout_ns: i64);

    /// It runs again, with so many descriptors ready.
    wake(events: u64);
}

/// What `submit_begin` and `submit_end` call Linux AIO.
pub const LINUX_AIO: u64 = 0;

/// What they call io_uring.
pub const IO_URING: u64 = 1;

/// The status of a request that succeeded, or not: `VIRTIO_BLK_S_OK` and `VIRTIO_BLK_S_IOERR` (VIRTIO, section 5.2.6).
#[must_use]
pub fn status(succeeded: bool) -> u64 {
    u64::from(!succeeded)
}
