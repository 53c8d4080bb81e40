//! A paused server, which another process takes over in a live upgrade: it is between two messages, its queues are stopped, and its
//! connection is described.
//!
//! All of this can be undone: a [`PausedServer`] that is dropped goes on where it was.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use virtqueue::queue_setup::{QueueCommand, QueueFds};

use super::Server;
use super::shared::{ServerShared, lock_connection};
use crate::connection::Connection;
use crate::message::Message;

/// A connection on its way to another process.
#[derive(Debug)]
pub struct ConnectionHandover {
    /// The front-end's socket.
    pub stream: OwnedFd,
    /// The messages that the other process replays to restore the state of the connection.
    pub replayed_messages: Vec<Message>,
    /// The queues that run, with the kick descriptor of each.
    pub running_queues: Vec<(u16, Option<OwnedFd>)>,
}

/// A server that handles no messages. It and its queues go on when this is dropped.
pub struct PausedServer {
    shared: Arc<ServerShared>,
    connection: Option<Arc<Mutex<Connection>>>,
    /// File descriptors of the queues that run or ran.
    descriptors: Vec<(u16, QueueFds)>,
    /// Those queues were stopped.
    stopped: bool,
}

impl Server {
    /// Pauses the server before its next message or front-end. `None`: the message that it handles does not end within
    /// `timeout`, or the server is stopping.
    #[must_use]
    pub fn try_pause(&self, timeout: Duration) -> Option<PausedServer> {
        if !self.shared.pause_within(timeout) {
            return None;
        }
        let connection = self.shared.lock_state().connection.clone();
        Some(PausedServer {
            shared: self.shared.clone(),
            connection,
            descriptors: Vec::new(),
            stopped: false,
        })
    }
}

impl PausedServer {
    /// Describes the connection, if there is one.
    ///
    /// # Errors
    /// Too many files are open, or the guest is being migrated.
    pub fn make_connection_handover(&mut self) -> io::Result<Option<ConnectionHandover>> {
        let Some(connection) = &self.connection else {
            return Ok(None);
        };
        let socket = self.shared.lock_state().socket.clone();
        let Some(socket) = socket else {
            return Ok(None);
        };
        let connection = lock_connection(connection);
        if connection.is_dirty_logging_on() {
            return Err(io::Error::other(
                "its guest is being migrated; try again when that is over",
            ));
        }
        self.descriptors = connection.duplicate_running_queue_fds()?;
        let kicks = self.descriptors.iter().map(|(index, descriptors)| {
            let kick = descriptors.kick.as_ref().map(OwnedFd::try_clone);
            Ok((*index, kick.transpose()?))
        });
        Ok(Some(ConnectionHandover {
            running_queues: kicks.collect::<io::Result<_>>()?,
            replayed_messages: connection.encode_restore_messages(&self.descriptors)?,
            stream: socket.as_fd().try_clone_to_owned()?,
        }))
    }

    /// Pauses the queues. Each of those that run replies when the requests that it has taken are done.
    #[must_use]
    pub fn begin_quiesce(&mut self) -> Vec<Receiver<()>> {
        let Some(connection) = &self.connection else {
            return Vec::new();
        };
        let mut connection = lock_connection(connection);
        for vring in &mut connection.vrings {
            vring.pause();
        }
        let running = connection
            .vrings
            .iter()
            .filter_map(|vring| vring.running_queue());
        running
            .map(|running| running.send_for_reply(QueueCommand::Settle))
            .collect()
    }

    /// Pauses one queue, which replies as for [`PausedServer::begin_quiesce`] if it runs.
    #[must_use]
    pub fn begin_quiesce_queue(&mut self, index: u16) -> Option<Receiver<()>> {
        let mut connection = lock_connection(self.connection.as_ref()?);
        let vring = connection.vrings.get_mut(usize::from(index))?;
        vring.pause();
        let running = vring.running_queue()?;
        Some(running.send_for_reply(QueueCommand::Settle))
    }

    /// Stops the queues, and returns the base of each. Requests that are not done stay in the in-flight region, which
    /// the other process gets.
    #[must_use]
    pub fn stop_queues_for_handover(&mut self) -> Vec<(u16, u32)> {
        let Some(connection) = &self.connection else {
            return Vec::new();
        };
        self.stopped = true;
        let mut connection = lock_connection(connection);
        let indices = self.descriptors.iter().map(|(index, _)| *index);
        let stop = |index| {
            let vring = connection.vrings.get_mut(usize::from(index))?;
            let base = vring.stop_leaving_parked();
            vring.clear_and_drop_inflight_region();
            Some((index, base))
        };
        indices.filter_map(stop).collect()
    }

    /// Drops it without letting anything go on here: another process serves the connection now, and this process is to end.
    pub fn forget_without_resuming(self) {
        std::mem::forget(self);
    }
}

impl Drop for PausedServer {
    /// Undoes the handover: starts the queues where they were stopped, and handles messages again.
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            let mut connection = lock_connection(connection);
            if self.stopped {
                for (index, descriptors) in self.descriptors.drain(..) {
                    connection.restart_queue_after_aborted_handover(index, descriptors);
                }
            }
            for vring in &mut connection.vrings {
                vring.resume();
            }
        }
        self.shared.resume();
    }
}
