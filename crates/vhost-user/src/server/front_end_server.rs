//! Serves the front-ends of a socket, one at a time: accepts each and handles its messages.
//!
//! One of the [`ControlThreads`](super::ControlThreads) does so while there are messages; otherwise a [`FrontEndServer`] is in the
//! server's state.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unix_socket::accept::{ACCEPT_RETRY_DELAY, client_or_warn};
use vhost::vhost_user::Error;

use super::control_threads::SocketOwner;
use super::shared::{FrontEndServer, MessageReader, ServerShared, lock_connection};
use crate::backend_channel::BackendChannel;
use crate::connection::Connection;

/// How often front-ends are turned away while the queues of a disconnected one drain.
const TURN_AWAY_PERIOD: Duration = Duration::from_millis(100);

/// Most regions of a memory table, each with a descriptor; other messages bring one.
const MAX_FDS_OF_MESSAGE: u32 = 8;

impl SocketOwner for ServerShared {
    /// Serves what front-ends have sent, unless a thread does so already, or the server is paused.
    fn serve_readable_socket(&self) {
        if let Some(mut server) = self.take_idle_unless_paused() {
            server.serve_sent_messages(self);
            self.put_idle(server);
        }
    }

    fn watch_again(&self) {
        self.watch_socket_unless_paused(&self.lock_state());
    }
}

impl FrontEndServer {
    /// Serves the present front-end, or accepts one that has connected, until it has sent nothing more, it has disconnected, or the
    /// server is paused.
    pub fn serve_sent_messages(&mut self, shared: &ServerShared) {
        let present = self.reader.take();
        let served = catch_unwind(AssertUnwindSafe(|| {
            let reader = present.or_else(|| self.accept(shared))?;
            self.handle_sent_messages(reader, shared)
        }));
        if served.is_err() {
            tracing::error!(
                export = self.device.name(),
                advice = "this is a bug in blockplane: report it",
                "a panic; the front-end is disconnected"
            );
        }
        self.reader = served.ok().flatten();
        if self.reader.is_none() {
            self.drop_connection(shared);
        }
    }

    /// Drops the connection that has ended, also after a panic.
    fn drop_connection(&self, shared: &ServerShared) {
        let mut state = shared.lock_state();
        let (socket, connection) = (state.socket.take(), state.connection.take());
        state.reading_messages = false;
        drop(state);
        // After a panic the queues drain only now; the front-end must see the end of the connection after that.
        drop(connection);
        if let Some(socket) = socket {
            // Closing does not always end it: where another thread has just looked at the socket in epoll_wait(2), the kernel releases
            // it when that thread returns, which may be never. (An error means that the front-end has closed it.)
            let _ = socket.shutdown(Shutdown::Both);
            drop(socket);
            self.device.on_connection_change(false);
        }
    }

    /// Accepts a front-end, if one has connected.
    fn accept(&self, shared: &ServerShared) -> Option<MessageReader> {
        let export = self.device.name();
        let accepted = self.listener.socket().accept();
        let Ok(accepted) = client_or_warn(accepted, "a front-end", Some(export)) else {
            std::thread::sleep(ACCEPT_RETRY_DELAY);
            return None;
        };
        let prepared = self.prepare_connection(accepted?.0, shared);
        if let Err(error) = &prepared {
            tracing::warn!(
                export,
                %error,
                "cannot serve a front-end: too many open files? see `ulimit -n`"
            );
        }
        prepared.ok().flatten()
    }

    /// Makes the connection of a front-end that has connected, unless the server is stopping.
    fn prepare_connection(
        &self,
        stream: UnixStream,
        shared: &ServerShared,
    ) -> io::Result<Option<MessageReader>> {
        stream.set_nonblocking(false)?;
        let socket = stream.try_clone()?;
        shared.add_socket(&socket)?;
        let connection = Arc::new(Mutex::new(Connection::new(self.device.clone())));
        let mut state = shared.lock_state();
        if state.is_stopping() {
            return Ok(None);
        }
        state.socket = Some(Arc::new(socket));
        state.connection = Some(connection.clone());
        state.reading_messages = true;
        drop(state);
        tracing::info!(export = self.device.name(), "front-end connected");
        self.device.on_connection_change(true);
        Ok(Some(MessageReader::from_stream(stream, connection)))
    }

    /// Handles the messages that the front-end has sent. Returns the reader if the front-end is still connected, and `None` if
    /// it is gone and its queues have stopped.
    fn handle_sent_messages(
        &self,
        mut reader: MessageReader,
        shared: &ServerShared,
    ) -> Option<MessageReader> {
        let export = self.device.name();
        let state = shared.lock_state();
        let (socket, connection) = (state.socket.clone()?, state.connection.clone()?);
        drop(state);
        loop {
            // A server that stops shuts the socket down, and messages that have come before are still read.
            if shared.lock_state().is_paused() || !is_readable(&socket) {
                return Some(reader);
            }
            let channel = BackendChannel::wait_and_peek_in_next_message(&socket);
            lock_connection(&connection).set_peeked_channel(channel);
            match reader.handle_request() {
                Ok(()) => {}
                Err(Error::ReqHandlerError(error)) => {
                    tracing::info!(export, %error, "refused a front-end's message");
                }
                Err(Error::Disconnected) => break,
                Err(Error::SocketBroken(_) | Error::PartialMessage)
                    if shared.lock_state().is_stopping() =>
                {
                    break;
                }
                Err(_) if lock_connection(&connection).has_stop_timed_out() => break,
                Err(_) if lock_connection(&connection).has_refused_start() => break,
                Err(error) if !can_open_more_files(&socket, MAX_FDS_OF_MESSAGE) => {
                    tracing::warn!(
                        export,
                        %error,
                        "a message's descriptors cannot be received: too many files are open, see `ulimit -n` \
                         and `LimitNOFILE=`; the front-end is disconnected"
                    );
                    break;
                }
                Err(error) => {
                    tracing::warn!(
                        export,
                        %error,
                        advice = "check which program connects to this socket: it does not keep to vhost-user",
                        "bad message; the front-end is disconnected"
                    );
                    break;
                }
            }
        }
        shared.mark_reading_ended();
        // The queues drain before the front-end sees the end of the connection: the caller closes the last descriptor.
        drop(reader);
        if lock_connection(&connection).has_stop_timed_out() {
            self.disconnect_and_turn_away_until_queues_stopped(&socket, &connection, shared);
        }
        lock_connection(&connection).stop_queues_leaving_parked();
        tracing::info!(export, "front-end disconnected");
        None
    }

    /// Disconnects a front-end before its queues have drained, since that takes too long, and turns away others meanwhile: they
    /// would wait for replies. The in-flight region, which the front-end keeps, has the requests that are not done.
    fn disconnect_and_turn_away_until_queues_stopped(
        &self,
        socket: &UnixStream,
        connection: &Mutex<Connection>,
        shared: &ServerShared,
    ) {
        // An error means that it has disconnected by itself.
        let _ = socket.shutdown(Shutdown::Both);
        lock_connection(connection).begin_stop_queues_leaving_parked();
        while !shared.lock_state().is_stopping()
            && !lock_connection(connection).have_queues_stopped_within(TURN_AWAY_PERIOD)
        {
            // The accepted connection is closed at once; the front-end tries again later.
            let _ = self.listener.socket().accept();
        }
    }
}

/// Whether a socket is readable, or its other end is closed.
fn is_readable(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
    // After an error, reading reports it.
    ready != Ok(0)
}

/// Whether this process may open as many more files as a message brings. The kernel leaves out those that it
/// may not (recvmsg(2), `MSG_CTRUNC`), and the message looks like a bad one.
fn can_open_more_files(socket: &UnixStream, count: u32) -> bool {
    let duplicates: rustix::io::Result<Vec<OwnedFd>> = (0..count)
        .map(|_| rustix::io::fcntl_dupfd_cloexec(socket, 0))
        .collect();
    duplicates.is_ok()
}
