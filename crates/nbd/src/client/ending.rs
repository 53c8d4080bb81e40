//! Connections that this side has ended: as long as the server has not closed its end, no other one is made to the export.
//!
//! Most servers close their end when they have carried out, or dropped, what they had received. With a new connection before that, an
//! old write might be carried out after a newer one. The list is the process's: a job's disk may be closed, and opened anew for
//! the next job, before the connection has ended.

use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, Shutdown};

use super::launcher;
use super::options::{ClientOptions, ServerAddress};

/// How long the server's end of a connection is waited for.
pub(super) const ENDING_WAIT: Duration = Duration::from_secs(3);

/// The same after writes were given up: the server was silent before, and may be for longer.
pub(super) const GIVEN_UP_WAIT: Duration = Duration::from_secs(30);

/// The server and the name of an export.
type Export = (ServerAddress, String);

/// The exports of all connections that are ending.
static ENDING: Mutex<Vec<Export>> = Mutex::new(Vec::new());

/// A connection has left the list.
static HAS_ENDED: Condvar = Condvar::new();

fn lock_ending() -> MutexGuard<'static, Vec<Export>> {
    ENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn export_of(options: &ClientOptions) -> Export {
    (options.server.clone(), options.export.clone())
}

/// A connection that is ending.
pub(super) struct EndingConnection {
    socket: OwnedFd,
    export: Export,
    wait: Duration,
}

impl EndingConnection {
    /// From now on new connections to the export wait for the end of this one, which takes so long at most.
    pub fn begin(socket: OwnedFd, options: &ClientOptions, wait: Duration) -> Self {
        let export = export_of(options);
        lock_ending().push(export.clone());
        EndingConnection {
            socket,
            export,
            wait,
        }
    }

    /// Sends nothing more, and waits a moment until the server has closed its end.
    pub fn wait(self) {
        await_end_of_peer(&self.socket, Instant::now() + self.wait);
    }

    /// The same, on a thread of its own.
    pub fn wait_in_background(self) {
        launcher::spawn_thread("nbd end", move || self.wait());
    }
}

impl Drop for EndingConnection {
    fn drop(&mut self) {
        let mut ending = lock_ending();
        if let Some(index) = ending.iter().position(|export| *export == self.export) {
            ending.swap_remove(index);
        }
        HAS_ENDED.notify_all();
    }
}

/// Waits until no connection to the export is ending. False: one is at the deadline.
pub(super) fn wait_for_ending(options: &ClientOptions, deadline: Instant) -> bool {
    let export = export_of(options);
    let mut ending = lock_ending();
    while ending.contains(&export) {
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            return false;
        };
        let waited = HAS_ENDED.wait_timeout(ending, left);
        ending = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    true
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
