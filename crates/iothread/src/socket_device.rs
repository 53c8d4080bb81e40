//! Interface between an iothread and a device without virtqueues, which has its own socket to its front-end.

use std::os::fd::BorrowedFd;

use block::DiskIo;
use engine::Completion;

use crate::event_loop::Interest;

/// Number of descriptors that a socket device may have watched.
pub const MAX_WATCHED_DESCRIPTORS: usize = 4;

/// A device that an iothread runs beside queues. It has sockets and registers of its own, and submits requests to the iothread's engines.
///
/// All calls come from the iothread, and none may block.
pub trait SocketDevice: Send {
    /// The descriptors to watch now, each always at the same index. This is checked after each turn, so added and removed descriptors
    /// are noticed.
    fn watched_descriptors(&self) -> [Option<(BorrowedFd<'_>, Interest)>; MAX_WATCHED_DESCRIPTORS];

    /// A number that changes when one of the [descriptors](SocketDevice::watched_descriptors) is replaced by another one at
    /// the same index.
    fn watched_descriptors_version(&self) -> u64;

    /// Handles that the descriptor at this index is ready. Its turn follows.
    fn on_ready(&mut self, descriptor: usize, now_ns: u64);

    /// Polls the socket by one system call that does not wait. True: there is a message, which is handled in its turn, which
    /// follows. By default, a polling iothread learns of messages from the descriptors alone.
    fn poll_socket(&mut self) -> bool {
        false
    }

    /// Works for a bounded time. True: there is more work.
    fn run_turn(&mut self, now_ns: u64) -> bool;

    /// Deadline of its next turn, on the loop's clock, if nothing happens before.
    fn deadline_ns(&mut self) -> Option<u64> {
        None
    }

    /// Submits its requests to its disks, which are numbered in the order of its nodes. False: some wait for room, and
    /// this is called again.
    fn submit(&mut self, io: &mut dyn DiskIo) -> bool;

    /// Completes requests, identified by the lower halves of their tokens. Its turn follows.
    fn complete(&mut self, done: &[Completion]);

    /// Number of requests in flight, which its end waits for.
    fn in_flight_count(&mut self) -> usize;

    /// Whether a front-end is connected.
    fn is_connected(&self) -> bool;

    /// Accepts no front-end, or accepts one again. During a live upgrade, accepting is paused in each process until it owns the socket.
    fn set_accepting_paused(&mut self, paused: bool);

    /// Disconnects the front-end, if there is one.
    fn disconnect(&mut self);

    /// Disconnects the front-end and accepts no other. No more requests are submitted.
    fn disconnect_and_stop(&mut self);
}
