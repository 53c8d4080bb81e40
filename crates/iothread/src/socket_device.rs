//! A device that has no virtqueues and speaks to its front-end by itself, as an iothread sees it.

use std::os::fd::BorrowedFd;

use block::DiskIo;
use engine::Completion;

use crate::event_loop::Interest;

/// Descriptors that a socket device may have watched.
pub const SOURCES: usize = 4;

/// A device that an iothread runs beside queues: sockets and registers are its own, its requests go to the iothread's engines.
///
/// All calls come from the iothread, and none may block.
pub trait SocketDevice: Send {
    /// What is to be watched now, each always at the same place. This is looked at after each turn: a descriptor that comes or goes
    /// is noticed.
    fn sources(&self) -> [Option<(BorrowedFd<'_>, Interest)>; SOURCES];

    /// Another number when one of the [sources](SocketDevice::sources) is another descriptor than before at the same place.
    fn generation(&self) -> u64;

    /// The descriptor at this place is ready. Its turn comes next.
    fn ready(&mut self, source: usize, now_ns: u64);

    /// Looks, by one system call that does not wait, whether the front-end has said something. True: its turn comes next. Nothing
    /// is carried out before that. Without it an iothread that polls learns of messages from its descriptors alone.
    fn poll_socket(&mut self) -> bool {
        false
    }

    /// Does for a bounded time what is to be done. True: there is more.
    fn run(&mut self, now_ns: u64) -> bool;

    /// When its turn is to come even if nothing happens, on the loop's clock.
    fn deadline_ns(&mut self) -> Option<u64> {
        None
    }

    /// Submits the requests that it has to its disks, which are numbered in the order of its nodes. False: some wait for room, and
    /// this is called again.
    fn submit(&mut self, io: &mut dyn DiskIo) -> bool;

    /// Requests are done, named by the lower halves of their tokens. Its turn comes next.
    fn complete(&mut self, done: &[Completion]);

    /// Requests that were submitted and are not done: its end waits for them.
    fn in_flight(&mut self) -> usize;

    /// Whether a front-end is there.
    fn is_connected(&self) -> bool;

    /// No front-end is taken, or one is again. While a new version of the daemon takes over, each process has it parked until the
    /// socket is its own.
    fn park(&mut self, parked: bool);

    /// The front-end, if there is one, is sent away.
    fn disconnect(&mut self);

    /// The same, and no other is taken. No request is asked for any more.
    fn stop(&mut self);
}
