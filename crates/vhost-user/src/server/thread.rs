//! The thread of a server: accepts front-ends and handles their messages.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use unix_socket::listener::Listener;
use vhost::vhost_user::Error;

use super::shared::{MessageReader, Shared, lock_connection};
use crate::backend_channel::BackendChannel;
use crate::connection::Connection;
use crate::device::VirtioDevice;

/// How often front-ends are turned away while the queues of a disconnected one drain.
const TURN_AWAY_PERIOD: Duration = Duration::from_millis(100);

/// Most regions of a memory table, each with a descriptor; other messages bring one.
const MAX_FDS_OF_MESSAGE: u32 = 8;

/// What the thread of a server works with.
pub(super) struct ServerThread {
    pub listener: Listener,
    pub device: Arc<dyn VirtioDevice>,
    pub shared: Arc<Shared>,
}

impl ServerThread {
    /// Serves front-ends until the server is to stop.
    pub fn run(&self) {
        let shared = &self.shared;
        while shared.pause_or_wait_readable_or_taken_over(self.listener.socket().as_fd()) {
            let taken_over = shared.lock_state().taken_over.take();
            if let Some(reader) = taken_over {
                self.serve_and_clean_up(|| self.serve_taken_over_connection(reader));
                continue;
            }
            match self.listener.socket().accept() {
                Ok((stream, _)) => self.serve_and_clean_up(|| self.serve_accepted(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(
                        export = self.device.name(),
                        %error,
                        advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                        "cannot accept a front-end; trying again"
                    );
                    // Most likely descriptors have run out: do not spin on it.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves a connection by calling `serve`, and drops it afterwards, also after a panic.
    fn serve_and_clean_up(&self, serve: impl FnOnce()) {
        let served = catch_unwind(AssertUnwindSafe(serve));
        let mut state = self.shared.lock_state();
        let (socket, connection) = (state.socket.take(), state.connection.take());
        state.reading_messages = false;
        drop(state);
        // After a panic the queues drain only now; the front-end must see the end of the connection after that.
        drop(connection);
        let was_connected = socket.map(drop).is_some();
        if was_connected {
            self.device.on_connection_change(false);
        }
        if served.is_err() {
            tracing::error!(
                export = self.device.name(),
                advice = "this is a bug in blockplane: report it",
                "a panic; the front-end is disconnected"
            );
        }
    }

    /// Serves a front-end that has connected.
    fn serve_accepted(&self, stream: UnixStream) {
        let export = self.device.name();
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.try_clone());
        let Ok(socket) = prepared.map(Arc::new) else {
            tracing::warn!(
                export,
                "cannot serve a front-end: too many open files? see `ulimit -n`"
            );
            return;
        };
        let connection = Arc::new(Mutex::new(Connection::new(self.device.clone())));
        {
            let mut state = self.shared.lock_state();
            if state.stopping {
                return;
            }
            state.socket = Some(socket.clone());
            state.connection = Some(connection.clone());
            state.reading_messages = true;
        }
        tracing::info!(export, "front-end connected");
        self.device.on_connection_change(true);
        let reader = MessageReader::from_stream(stream, connection.clone());
        self.handle_messages(reader, &socket, &connection);
    }

    /// Serves a connection that another process began.
    fn serve_taken_over_connection(&self, reader: MessageReader) {
        let mut state = self.shared.lock_state();
        let (Some(socket), Some(connection)) = (state.socket.clone(), state.connection.clone())
        else {
            return;
        };
        state.reading_messages = true;
        drop(state);
        tracing::info!(export = self.device.name(), "front-end taken over");
        self.device.on_connection_change(true);
        self.handle_messages(reader, &socket, &connection);
    }

    /// Handles the front-end's messages until it is disconnected.
    fn handle_messages(
        &self,
        mut reader: MessageReader,
        socket: &UnixStream,
        connection: &Mutex<Connection>,
    ) {
        let (export, shared) = (self.device.name(), &self.shared);
        loop {
            // A server that stops shuts the socket down, and messages that have come before are still read.
            let _ = shared.pause_or_wait_readable_or_taken_over(socket.as_fd());
            let channel = BackendChannel::wait_and_peek_in_next_message(socket);
            lock_connection(connection).set_peeked_channel(channel);
            match reader.handle_request() {
                Ok(()) => {}
                Err(Error::ReqHandlerError(error)) => {
                    tracing::info!(export, %error, "refused a front-end's message");
                }
                Err(Error::Disconnected) => break,
                Err(Error::SocketBroken(_) | Error::PartialMessage)
                    if shared.lock_state().stopping =>
                {
                    break;
                }
                Err(_) if lock_connection(connection).has_stop_timed_out() => break,
                Err(error) if !shared.can_open_more_files(MAX_FDS_OF_MESSAGE) => {
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
        if lock_connection(connection).has_stop_timed_out() {
            self.disconnect_and_turn_away_until_queues_stopped(socket, connection);
        }
        lock_connection(connection).stop_queues();
        tracing::info!(export, "front-end disconnected");
    }

    /// Disconnects a front-end before its queues have drained, since that takes too long, and turns away others meanwhile: they
    /// would wait for replies. The in-flight region, which the front-end keeps, has the requests that are not done.
    fn disconnect_and_turn_away_until_queues_stopped(
        &self,
        socket: &UnixStream,
        connection: &Mutex<Connection>,
    ) {
        // An error means that it has disconnected by itself.
        let _ = socket.shutdown(Shutdown::Both);
        lock_connection(connection).begin_stop_queues();
        while !self.shared.lock_state().stopping
            && !lock_connection(connection).have_queues_stopped_within(TURN_AWAY_PERIOD)
        {
            // The accepted connection is closed at once; the front-end tries again later.
            let _ = self.listener.socket().accept();
        }
    }
}
