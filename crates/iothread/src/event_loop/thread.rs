//! The thread of an event loop: starts, names and ends it.
//!
//! The loop is created, run and dropped on that thread. The function that creates the runner may bind it to CPUs first.

use std::io;
use std::thread::JoinHandle;

use crate::event_loop::iteration::{EventLoop, Runner, RunnerContext};
use crate::event_loop::mailbox::Remote;
use crate::event_loop::poll_predictor::PollSettings;
use crate::event_loop::poller::Epoll;

/// Error at the start of an iothread's thread: of its epoll and eventfd, or of the thread itself. Engines and CPU affinity have
/// errors of their own.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The poller or the eventfd could not be created.
    #[error(
        "iothread {name}: cannot create its poller: {error} (too many open files? see `ulimit -n`)"
    )]
    Poller {
        /// The iothread.
        name: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The thread could not be started.
    #[error("iothread {name}: cannot start its thread: {error}")]
    Thread {
        /// The iothread.
        name: String,
        /// The kernel's error.
        error: io::Error,
    },
}

/// Aborts the process if an iothread panics: its requests would never be completed, and its guests would wait for ever. A service
/// manager starts the process again.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Owner's handle of the thread of a running iothread.
pub struct EventLoopThread<M> {
    remote: Remote<M>,
    thread: JoinHandle<()>,
}

impl<M: Send> EventLoopThread<M> {
    /// Sender of messages to it.
    #[must_use]
    pub fn remote(&self) -> &Remote<M> {
        &self.remote
    }

    /// Ends it and waits for its thread.
    ///
    /// # Panics
    /// When the iothread itself had panicked: its queues' state is unknown then.
    pub fn stop(self) {
        // An error means that it has ended already.
        let _ = self.remote.stop();
        self.thread.join().expect("the iothread did not panic");
    }
}

impl<P: Runner + 'static> EventLoop<P>
where
    P::Message: 'static,
{
    /// Starts an iothread named `IO <name>` on the kernel's epoll.
    ///
    /// # Errors
    /// [`SpawnError`], or the error of `make_runner`, which runs on the new thread.
    pub fn spawn<E>(
        name: &str,
        polling: PollSettings,
        make_runner: impl FnOnce(&mut RunnerContext<P>, &Remote<P::Message>) -> Result<P, E>
        + Send
        + 'static,
    ) -> Result<EventLoopThread<P::Message>, E>
    where
        E: From<SpawnError> + From<io::Error> + Send + 'static,
    {
        let (started, start) = std::sync::mpsc::channel();
        let owned_name = name.to_owned();
        // The loop is built on its own thread: it never leaves it.
        let build = move || {
            let poller = Epoll::new().map_err(|error| SpawnError::Poller {
                name: owned_name,
                error,
            })?;
            EventLoop::new(Box::new(poller), polling, make_runner)
        };
        let thread = std::thread::Builder::new()
            // The kernel cuts a thread's name after 15 bytes.
            .name(format!("IO {name}"))
            .spawn(move || match build() {
                Ok(mut iothread) => {
                    let _abort_on_panic = AbortOnPanic;
                    // The receiver may be gone; ignore the error.
                    let _ = started.send(Ok(iothread.remote()));
                    if let Err(error) = iothread.run() {
                        // Requests in flight would never be completed, and the control plane not be answered.
                        tracing::error!(%error, "the poller failed");
                        std::process::abort();
                    }
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            })
            .map_err(|error| SpawnError::Thread {
                name: name.to_owned(),
                error,
            })?;
        match start.recv() {
            Ok(Ok(remote)) => Ok(EventLoopThread { remote, thread }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(SpawnError::Thread {
                name: name.to_owned(),
                error: io::Error::other("it panicked while starting"),
            }
            .into()),
        }
    }
}
