//! One socket, one thread, one front-end at a time.
//!
//! The messages are read with blocking calls, since the wire format's library does so: a front-end
//! that sends half a message blocks this thread, which is nobody else's. Stopping shuts the
//! connection down, which ends any such wait.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::connection::Connection;
use crate::listener::Listener;
use crate::target::Target;

/// Stack of a control thread: messages have at most 4 KiB.
const STACK_BYTES: usize = 256 << 10;

/// A running server. Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Readable once the server is to stop.
    stop: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stopping: bool,
    connection: Option<UnixStream>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Serves front-ends that connect to `listener`, one after the other.
    ///
    /// # Errors
    /// When threads or descriptors have run out.
    pub fn spawn(listener: Listener, target: Arc<dyn Target>) -> io::Result<Self> {
        listener.socket().set_nonblocking(true)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared {
            stop,
            state: Mutex::default(),
        });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(format!("vu {}", target.name()))
                .stack_size(STACK_BYTES)
                .spawn(move || accept_loop(&listener, &target, &shared))?
        };
        Ok(Server {
            shared,
            thread: Some(thread),
        })
    }

    /// Takes no more front-ends and ends the connection of the present one. Returns at once; the
    /// drop waits until its queues have drained.
    pub fn begin_stop(&self) {
        let mut state = self.shared.state();
        state.stopping = true;
        if let Some(connection) = &state.connection {
            // An error says that it is closed already.
            let _ = connection.shutdown(Shutdown::Both);
        }
        drop(state);
        // Cannot fail: the counter is written once or twice.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a control thread panicked; its front-end was dropped");
        }
    }
}

fn accept_loop(listener: &Listener, target: &Arc<dyn Target>, shared: &Shared) {
    while wait(listener.socket().as_fd(), shared) {
        match listener.socket().accept() {
            Ok((stream, _)) => {
                // Whatever a front-end can bring about ends with its connection.
                let served = catch_unwind(AssertUnwindSafe(|| serve(stream, target, shared)));
                shared.state().connection = None;
                if served.is_err() {
                    tracing::error!(
                        export = target.name(),
                        "a panic; the front-end is disconnected"
                    );
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(export = target.name(), %error, "cannot accept a front-end");
                // Most likely descriptors have run out: do not spin on it.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }
}

/// Waits until `fd` is readable; false when the server is to stop.
fn wait(fd: BorrowedFd<'_>, shared: &Shared) -> bool {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(fd, PollFlags::IN),
            PollFd::new(&shared.stop, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => return fds[1].revents().is_empty(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "a control thread cannot wait any more");
                return false;
            }
        }
    }
}

fn serve(stream: UnixStream, target: &Arc<dyn Target>, shared: &Shared) {
    let export = target.name();
    let Ok(handle) = stream
        .set_nonblocking(false)
        .and_then(|()| stream.try_clone())
    else {
        tracing::warn!(
            export,
            "cannot take a front-end: too many open files? see `ulimit -n`"
        );
        return;
    };
    {
        let mut state = shared.state();
        if state.stopping {
            return;
        }
        state.connection = Some(handle);
    }
    tracing::info!(export, "front-end connected");
    let connection = Arc::new(Mutex::new(Connection::new(target.clone())));
    let mut messages = BackendReqHandler::from_stream(stream, connection.clone());
    loop {
        match messages.handle_request() {
            Ok(()) => {}
            Err(Error::ReqHandlerError(error)) => {
                tracing::info!(export, %error, "refused a front-end's message");
            }
            Err(Error::Disconnected) => break,
            Err(Error::SocketBroken(_) | Error::PartialMessage) if shared.state().stopping => break,
            Err(error) => {
                tracing::warn!(export, %error, "bad message; the front-end is disconnected");
                break;
            }
        }
    }
    // The front-end hears at once; then its queues drain.
    drop(messages);
    drop(connection);
    tracing::info!(export, "front-end disconnected");
}
