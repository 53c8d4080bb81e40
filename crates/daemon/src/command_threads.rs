//! Commands that wait for a disk or for another process: a thread of their own waits, the main thread goes on with other
//! commands, and finishes the command when the wait is over.
//!
//! The nodes that such a command works on are reserved meanwhile
//! ([`crate::state::DaemonObjects::reserve_nodes`]), so that no other command changes them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use qmp::{Error, ReplySender};
use serde_json::json;

use crate::control::{MainThread, MainThreadMessage, MainThreadTask};

/// The work of a command's thread: waits, and returns what the main thread does next. If no thread could be started, the main thread
/// calls it with the error instead, and it does not wait.
type CommandThread = Box<dyn FnOnce(Result<(), Error>) -> MainThreadTask + Send>;

/// The end of a command that still waits when the daemon shuts down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandOnShutdown {
    /// The shutdown waits for it: it is changing a disk.
    Wait,
    /// It is abandoned: it has changed nothing yet, and its disk may never answer.
    Abandon,
}

impl MainThread {
    /// Runs `wait` on a thread of this name, then `finish` on the main thread, whose result is the reply to the command.
    pub fn spawn_command_thread_and_reply_later<T: Send + 'static>(
        &mut self,
        thread_name: String,
        on_shutdown: CommandOnShutdown,
        reply: ReplySender,
        wait: impl FnOnce() -> Result<T, Error> + Send + 'static,
        finish: impl FnOnce(&mut MainThread, Result<T, Error>) -> Result<(), Error> + Send + 'static,
    ) {
        self.spawn_command_thread(
            thread_name,
            on_shutdown,
            wait,
            move |control, wait_result| {
                let result = finish(control, wait_result);
                reply.send(result.map(|()| json!({})));
            },
        );
    }

    /// Runs `wait` on a thread of this name, then `proceed` on the main thread, which may start another thread. `proceed` runs after this has
    /// returned, also if no thread can be started.
    pub fn spawn_command_thread<T: Send + 'static>(
        &mut self,
        thread_name: String,
        on_shutdown: CommandOnShutdown,
        wait: impl FnOnce() -> Result<T, Error> + Send + 'static,
        proceed: impl FnOnce(&mut MainThread, Result<T, Error>) + Send + 'static,
    ) {
        let shutdown_waits = usize::from(on_shutdown == CommandOnShutdown::Wait);
        let work: CommandThread = Box::new(move |spawned| {
            let wait_result = spawned.and_then(|()| {
                catch_unwind(AssertUnwindSafe(wait))
                    .unwrap_or_else(|_| Err(Error::generic("it panicked: see the log")))
            });
            Box::new(move |control| {
                control.pending_command_count -= shutdown_waits;
                proceed(control, wait_result);
            })
        });
        self.pending_command_count += shutdown_waits;
        let message_sender = self.message_sender.clone();
        let (work_sender, work_receiver) = std::sync::mpsc::channel::<CommandThread>();
        let spawned = std::thread::Builder::new()
            .name(thread_name)
            .spawn(move || {
                if let Ok(work) = work_receiver.recv() {
                    // Fails only if the daemon shuts down without waiting for this command.
                    let _ = message_sender.send(MainThreadMessage::Run(work(Ok(()))));
                }
            });
        match spawned {
            // Cannot fail: the thread is receiving.
            Ok(_) => drop(work_sender.send(work)),
            Err(error) => {
                let error = Error::generic(format!("no thread to wait on: {error}"));
                // As a message: continuations that start a thread each would nest until the stack overflows.
                let _ = self
                    .message_sender
                    .send(MainThreadMessage::Run(work(Err(error))));
            }
        }
    }
}
