//! Restores, in a live upgrade, the connection that another process has handed over, and goes on serving its front-end.
//!
//! The wire library's state is private and results from messages, so the messages are replayed: each is sent over a socket
//! pair of our own. Once the state is restored, the front-end's socket takes the pair's place.

use std::io;
use std::mem::ManuallyDrop;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::io::DupFlags;

use super::Server;
use super::pause::ConnectionHandover;
use super::shared::{MessageReader, ServerShared, lock_connection};
use crate::backend_channel::BackendChannel;
use crate::connection::Connection;
use crate::message::{Message, RequestCode};

/// A restored connection that is not served yet: its queues take no requests.
pub struct RestoredConnection {
    shared: Arc<ServerShared>,
    connection: Arc<Mutex<Connection>>,
    reader: MessageReader,
    front_end: UnixStream,
    /// The kick descriptors of the queues.
    queue_kicks: Vec<(u16, Option<OwnedFd>)>,
}

impl Server {
    /// Restores the state of a connection. The server must be paused.
    ///
    /// # Errors
    /// A message is refused.
    pub fn restore_connection(
        &self,
        handover: ConnectionHandover,
    ) -> io::Result<RestoredConnection> {
        let connection = Arc::new(Mutex::new(Connection::new(self.device.clone())));
        for vring in &mut lock_connection(&connection).vrings {
            vring.pause();
        }
        let (_, unconnected) = UnixStream::pair()?;
        let mut restored = RestoredConnection {
            shared: self.shared.clone(),
            reader: MessageReader::from_stream(unconnected, connection.clone()),
            connection,
            front_end: handover.stream.into(),
            queue_kicks: handover.running_queues,
        };
        for message in &handover.replayed_messages {
            restored.replay_message(message)?;
        }
        Ok(restored)
    }

    /// Lets a paused server go on: it serves the connection that was taken over, and new ones.
    pub fn resume(&self) {
        self.shared.resume();
    }
}

impl RestoredConnection {
    /// Makes the library read from and reply to this socket.
    fn set_reader_socket(&self, socket: &UnixStream) -> io::Result<()> {
        let fd = self.reader.as_raw_fd();
        // SAFETY: the library keeps it open as long as it lives, which is longer than this; it is not closed here.
        let mut library_fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(rustix::io::dup3(
            socket,
            &mut library_fd,
            DupFlags::CLOEXEC,
        )?)
    }

    /// Lets the library handle a message of the handover, as if the front-end had sent it.
    fn replay_message(&mut self, message: &Message) -> io::Result<()> {
        let (ours, library) = UnixStream::pair()?;
        message.send(&ours)?;
        // If descriptors were lost because too many files are open, the library waits for the rest: the end of the stream ends that.
        ours.shutdown(Shutdown::Write)?;
        self.set_reader_socket(&library)?;
        let channel = BackendChannel::wait_and_peek_in_next_message(&library);
        lock_connection(&self.connection).set_peeked_channel(channel);
        // Replies go to our end of the pair, and are dropped with it.
        let handled = self.reader.handle_request();
        handled.map_err(|error| io::Error::other(format!("its state is refused: {error}")))
    }

    /// Starts the queues where they stopped. They take no requests yet.
    ///
    /// # Errors
    /// A message is refused.
    pub fn start_paused_queues(&mut self, bases: &[(u16, u32)]) -> io::Result<()> {
        for (index, kick) in std::mem::take(&mut self.queue_kicks) {
            let found = bases.iter().find(|(found, _)| *found == index);
            let Some((_, base)) = found else {
                return Err(io::Error::other(format!(
                    "queue {index}: its ring index is missing in the handover"
                )));
            };
            self.replay_message(&Message::encode_with_queue_number(
                RequestCode::SetVringBase,
                index,
                *base,
            )?)?;
            let kick = kick.as_ref().map(AsFd::as_fd);
            self.replay_message(&Message::encode_with_queue_fd(
                RequestCode::SetVringKick,
                index,
                kick,
            )?)?;
        }
        Ok(())
    }

    /// Completes the handover: the queues take requests, and the server has the connection.
    ///
    /// # Errors
    /// Too many files are open or watched.
    pub fn resume_and_give_to_server(self) -> io::Result<()> {
        self.set_reader_socket(&self.front_end)?;
        self.shared.add_socket(&self.front_end)?;
        for vring in &mut lock_connection(&self.connection).vrings {
            vring.resume();
        }
        let device = lock_connection(&self.connection).device.clone();
        let mut state = self.shared.lock_state();
        // A paused server is idle.
        if let Some(server) = &mut state.idle {
            server.reader = Some(self.reader);
            state.reading_messages = true;
            state.socket = Some(Arc::new(self.front_end));
            state.connection = Some(self.connection);
        }
        drop(state);
        tracing::info!(export = device.name(), "front-end taken over");
        device.on_connection_change(true);
        Ok(())
    }
}
