//! The server of one socket, which serves one front-end at a time.
//!
//! The [`ControlThreads`] serve all servers of a process. One of them is a server's own only while its front-end's messages are handled:
//! they are read with blocking calls, since the wire format's library does so, and may wait for queues and disks. So a front-end that
//! sends half a message blocks one thread and no other server. Stopping shuts the connection down, which ends any such wait.

mod control_threads;
mod front_end_handle;
mod front_end_server;
mod pause;
mod shared;
mod take_over;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use unix_socket::listener::Listener;

use crate::device::VirtioDevice;

pub use control_threads::ControlThreads;
pub use front_end_handle::FrontEndHandle;
pub use pause::{ConnectionHandover, PausedServer};
pub use take_over::RestoredConnection;

use shared::{FrontEndServer, ServerShared};

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<ServerShared>,
    device: Arc<dyn VirtioDevice>,
    /// They end after all servers.
    _threads: Arc<ControlThreads>,
}

impl Server {
    /// Serves front-ends that connect to `listener`, one after the other.
    ///
    /// # Errors
    /// When memory, or what a user may watch, has run out.
    pub fn start(
        threads: &Arc<ControlThreads>,
        listener: Listener,
        device: Arc<dyn VirtioDevice>,
    ) -> io::Result<Self> {
        let server = Self::start_paused(threads, listener, device)?;
        server.resume();
        Ok(server)
    }

    /// The same, but serves no front-end before [`Server::resume`].
    ///
    /// # Errors
    /// As of [`Server::start`].
    pub fn start_paused(
        threads: &Arc<ControlThreads>,
        listener: Listener,
        device: Arc<dyn VirtioDevice>,
    ) -> io::Result<Self> {
        listener.socket().set_nonblocking(true)?;
        let shared = ServerShared::new_paused(threads);
        shared.add_socket(listener.socket())?;
        shared.put_idle(FrontEndServer {
            listener,
            device: device.clone(),
            reader: None,
        });
        Ok(Server {
            shared,
            device,
            _threads: threads.clone(),
        })
    }

    /// Accepts no more front-ends if none is connected at the moment; false if one is.
    #[must_use]
    pub fn begin_stop_if_unconnected(&self) -> bool {
        let mut state = self.shared.lock_state();
        if state.socket.is_some() {
            return false;
        }
        state.stopped_at = Some(Instant::now());
        true
    }

    /// A handle to the front-end that is connected at the moment.
    #[must_use]
    pub fn front_end_handle(&self) -> FrontEndHandle {
        FrontEndHandle(self.shared.clone())
    }

    /// Accepts no more front-ends and ends the connection of the present one. Returns at once; the
    /// drop waits until its queues have drained.
    pub fn begin_stop(&self) {
        self.shared.begin_stop();
    }
}

impl Drop for Server {
    /// Stops the server, and waits until the queues have drained.
    fn drop(&mut self) {
        self.begin_stop();
        self.shared.wait_for_last_message_or_disconnect();
        let server = self.shared.wait_until_idle_and_take();
        // Its last messages have waited for a thread in vain.
        if let Some(mut server) = server.filter(FrontEndServer::is_connected) {
            server.serve_sent_messages(&self.shared);
        }
    }
}
