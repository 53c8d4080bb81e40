//! State that a server's thread shares with the threads that control it, and how they wake it and wait for each other.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use vhost::vhost_user::BackendReqHandler;

use crate::connection::Connection;

/// The wire library's reader of a connection's messages, which calls the [`Connection`].
pub(super) type MessageReader = BackendReqHandler<Mutex<Connection>>;

/// How long a stopping server waits for the message that it handles. Replies are so short that only a
/// front-end that never reads makes a write wait; it loses its connection then.
const LAST_MESSAGE_TIME: Duration = Duration::from_secs(5);

/// The state, and how to wait for its changes.
pub(super) struct Shared {
    /// Readable when the thread is to stop or to pause.
    wake: OwnedFd,
    state: Mutex<ServerState>,
    reading_ended: Condvar,
    /// The thread has paused, or is to go on.
    pub pause_changed: Condvar,
}

#[derive(Default)]
pub(super) struct ServerState {
    pub stopping: bool,
    /// The thread is to pause before its next message.
    pub pause_requested: bool,
    pub paused: bool,
    pub socket: Option<Arc<UnixStream>>,
    pub connection: Option<Arc<Mutex<Connection>>>,
    /// Messages of the connection are being read; otherwise its queues drain.
    pub reading_messages: bool,
    /// The reader of a connection that another process began, until the thread serves it.
    pub taken_over: Option<MessageReader>,
}

impl Shared {
    /// The state of a server without a front-end, whose thread pauses at once if that is requested.
    pub fn new(pause_requested: bool) -> io::Result<Self> {
        Ok(Shared {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::new(ServerState {
                pause_requested,
                ..ServerState::default()
            }),
            reading_ended: Condvar::new(),
            pause_changed: Condvar::new(),
        })
    }

    /// Locks the state, also after a panic.
    pub fn lock_state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread when it waits for a message or a front-end.
    pub fn wake(&self) {
        // Cannot fail: the counter is written a few times.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Lets a paused thread go on.
    pub fn resume(&self) {
        self.lock_state().pause_requested = false;
        self.pause_changed.notify_all();
    }

    /// Whether this process may open as many more files as a message brings. The kernel leaves out those that it
    /// may not (recvmsg(2), `MSG_CTRUNC`), and the message looks like a bad one.
    pub fn can_open_more_files(&self, count: u32) -> bool {
        let all: Result<Vec<OwnedFd>, _> = (0..count)
            .map(|_| rustix::io::fcntl_dupfd_cloexec(&self.wake, 0))
            .collect();
        all.is_ok()
    }

    /// Waits until `fd` is readable, or there is a connection to take over, and pauses meanwhile if that is requested. False when
    /// the server is to stop.
    pub fn pause_or_wait_readable_or_taken_over(&self, fd: BorrowedFd<'_>) -> bool {
        loop {
            if !self.pause_if_requested() {
                return false;
            }
            if self.lock_state().taken_over.is_some() {
                return true;
            }
            let mut fds = [
                PollFd::from_borrowed_fd(fd, PollFlags::IN),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                // It is to stop or to pause.
                Ok(_) if !fds[1].revents().is_empty() => self.drain_wake_eventfd(),
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "a control thread cannot wait any more");
                    return false;
                }
            }
        }
    }

    /// Makes the wake-up unreadable again, except for a thread that is to stop.
    fn drain_wake_eventfd(&self) {
        if !self.lock_state().stopping {
            // A later wake-up writes it again.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// Pauses the thread for as long as that is requested. False when the server is to stop.
    fn pause_if_requested(&self) -> bool {
        let mut state = self.lock_state();
        if state.pause_requested && !state.stopping {
            state.paused = true;
            self.pause_changed.notify_all();
            let waited = self
                .pause_changed
                .wait_while(state, |state| state.pause_requested && !state.stopping);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.paused = false;
        }
        !state.stopping
    }

    /// Records that the thread reads no more messages of its connection.
    pub fn mark_reading_ended(&self) {
        self.lock_state().reading_messages = false;
        self.reading_ended.notify_all();
    }

    /// Waits until the message that is being handled has been answered. Disconnects a front-end that does not take its reply.
    pub fn wait_for_last_message_or_disconnect(&self) {
        let waited =
            self.reading_ended
                .wait_timeout_while(self.lock_state(), LAST_MESSAGE_TIME, |state| {
                    state.reading_messages
                });
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out()
            && let Some(socket) = &state.socket
        {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Locks a connection, also after a panic.
pub(super) fn lock_connection(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}
