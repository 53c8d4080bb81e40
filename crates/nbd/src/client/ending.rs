//! Connections that this side has ended: as long as the server has not closed its end, no other one is made to the export.
//!
//! Most servers close their end when they have carried out, or dropped, what they had received. With a new connection before that, an
//! old write might be carried out after a newer one. The list is the process's: a job's disk may be closed, and opened anew for
//! the next job, before the connection has ended.

use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, Shutdown};

use super::launcher::Launcher;
use super::options::{ClientOptions, ServerAddress};

/// How long the server's end of a connection is waited for.
pub(super) const ENDING_WAIT: Duration = Duration::from_secs(3);

/// The same after writes were given up: the server was silent before, and may be for longer.
pub(super) const GIVEN_UP_WAIT: Duration = Duration::from_secs(30);

/// An entry of the list.
#[derive(Clone, PartialEq, Eq)]
struct Ending {
    server: ServerAddress,
    export: String,
    /// When its end is not waited for any more.
    deadline: Instant,
}

impl Ending {
    fn concerns(&self, options: &ClientOptions) -> bool {
        self.server == options.server && self.export == options.export
    }
}

/// All connections that are ending.
static ENDING: Mutex<Vec<Ending>> = Mutex::new(Vec::new());

/// A connection has left the list.
static HAS_ENDED: Condvar = Condvar::new();

fn lock_ending() -> MutexGuard<'static, Vec<Ending>> {
    ENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that is ending.
pub(super) struct EndingConnection {
    socket: OwnedFd,
    entry: Ending,
}

impl EndingConnection {
    /// From now on new connections to the export wait for the end of this one, which takes so long at most.
    pub fn begin(socket: OwnedFd, options: &ClientOptions, wait: Duration) -> Self {
        let entry = Ending {
            server: options.server.clone(),
            export: options.export.clone(),
            deadline: Instant::now() + wait,
        };
        lock_ending().push(entry.clone());
        EndingConnection { socket, entry }
    }

    /// Sends nothing more, and waits a moment until the server has closed its end.
    pub fn wait(self) {
        await_end_of_peer(&self.socket, self.entry.deadline);
    }

    /// The same, on a thread of its own.
    pub fn wait_in_background(self, launcher: &Launcher) {
        launcher.spawn_thread("nbd end", move || self.wait());
    }
}

impl Drop for EndingConnection {
    fn drop(&mut self) {
        let mut ending = lock_ending();
        if let Some(index) = ending.iter().position(|other| *other == self.entry) {
            ending.swap_remove(index);
        }
        HAS_ENDED.notify_all();
    }
}

/// Waits until no connection to any of these exports is ending. False: one is at the deadline.
pub(super) fn wait_for_ending(exports: &[&ClientOptions], deadline: Instant) -> bool {
    let concerns_any = |entry: &Ending| exports.iter().any(|export| entry.concerns(export));
    let mut ending = lock_ending();
    while ending.iter().any(concerns_any) {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            return false;
        };
        let waited = HAS_ENDED.wait_timeout(ending, left);
        ending = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

/// How long the ends of connections to the export are waited for at most.
pub(super) fn time_until_ended(options: &ClientOptions) -> Duration {
    let ending = lock_ending();
    let entries = ending.iter().filter(|entry| entry.concerns(options));
    let last = entries.map(|entry| entry.deadline).max();
    last.map_or(Duration::ZERO, |last| {
        last.saturating_duration_since(Instant::now())
    })
}

fn await_end_of_peer(socket: &OwnedFd, deadline: Instant) {
    if rustix::net::shutdown(socket, Shutdown::Write).is_err() {
        return;
    }
    let mut rest = [0_u8; 16 << 10];
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        let mut ready = [rustix::event::PollFd::new(
            socket,
            rustix::event::PollFlags::IN,
        )];
        let timeout = rustix::event::Timespec::try_from(left).unwrap_or_default();
        match rustix::event::poll(&mut ready, Some(&timeout)) {
            Ok(0) => return,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        match rustix::net::recv(socket, &mut rest[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
