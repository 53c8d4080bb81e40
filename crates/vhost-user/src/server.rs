//! The server of one socket, which serves one front-end at a time on a thread of its own.
//!
//! The messages are read with blocking calls, since the wire format's library does so: a front-end
//! that sends half a message blocks its server's thread only. Stopping shuts the
//! connection down, which ends any such wait.

mod front_end_handle;
mod pause;
mod shared;
mod take_over;
mod thread;

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::thread::JoinHandle;

use unix_socket::listener::Listener;

use crate::device::VirtioDevice;

pub use front_end_handle::FrontEndHandle;
pub use pause::{ConnectionHandover, PausedServer};
pub use take_over::RestoredConnection;

use shared::Shared;
use thread::ServerThread;

/// Stack of a control thread: messages have at most 4 KiB.
const STACK_BYTES: usize = 256 << 10;

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    device: Arc<dyn VirtioDevice>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves front-ends that connect to `listener`, one after the other.
    ///
    /// # Errors
    /// When threads or descriptors have run out.
    pub fn spawn(listener: Listener, device: Arc<dyn VirtioDevice>) -> io::Result<Self> {
        Self::spawn_running_or_paused(listener, device, false)
    }

    /// The same, but serves no front-end before [`Server::resume`].
    ///
    /// # Errors
    /// As of [`Server::spawn`].
    pub fn spawn_paused(listener: Listener, device: Arc<dyn VirtioDevice>) -> io::Result<Self> {
        Self::spawn_running_or_paused(listener, device, true)
    }

    /// Starts the thread of a server, which pauses at once if it is to be `paused`.
    fn spawn_running_or_paused(
        listener: Listener,
        device: Arc<dyn VirtioDevice>,
        paused: bool,
    ) -> io::Result<Self> {
        listener.socket().set_nonblocking(true)?;
        let shared = Arc::new(Shared::new(paused)?);
        let thread = ServerThread {
            listener,
            device: device.clone(),
            shared: shared.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("vu {}", device.name()))
            .stack_size(STACK_BYTES)
            .spawn(move || thread.run())?;
        Ok(Server {
            shared,
            device,
            thread: Some(thread),
        })
    }

    /// Accepts no more front-ends if none is connected at the moment; false if one is.
    #[must_use]
    pub fn begin_stop_if_unconnected(&self) -> bool {
        let mut state = self.shared.lock_state();
        if state.socket.is_some() {
            return false;
        }
        state.stopping = true;
        drop(state);
        self.shared.wake();
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
        let mut state = self.shared.lock_state();
        state.stopping = true;
        if let Some(socket) = &state.socket {
            // Only the reading side is shut down: this wakes the thread, but the front-end must not see the end of the
            // connection before its queues have drained. It takes the used index that it finds then for the requests that
            // are done, and resubmits the others to the next server. (An error means that the connection is closed already.)
            let _ = socket.shutdown(Shutdown::Read);
        }
        drop(state);
        self.shared.pause_changed.notify_all();
        self.shared.wake();
    }
}

impl Drop for Server {
    /// Stops the server, and waits until the queues have drained.
    fn drop(&mut self) {
        self.begin_stop();
        self.shared.wait_for_last_message_or_disconnect();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                advice = "this is a bug in blockplane: report it",
                "a control thread panicked; its front-end was dropped"
            );
        }
    }
}
