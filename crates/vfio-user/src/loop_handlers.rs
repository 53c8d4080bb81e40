//! Registration of a server's descriptors with an event loop.
//!
//! The descriptors change when front-ends connect, disconnect and set interrupts up, and a socket is watched for writing only
//! while there are bytes to send. So the registration is updated after each call of a [`Server`]'s methods, which mostly
//! changes nothing. The loop owns the descriptors that it watches, so it gets duplicates: a front-end sees the end of its
//! connection when the loop's duplicate is closed, too.

use std::io;

use iothread::event_loop::{Context, HandlerId, Interest};

use crate::device::PciDevice;
use crate::server::Server;

/// The descriptor that became ready, and so the method to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerReadiness {
    /// [`Server::handle_readable`].
    Read,
    /// [`Server::handle_writable`].
    Write,
    /// [`Server::handle_unmask`].
    Unmask,
}

/// The handlers of one server in a loop.
#[derive(Default)]
pub struct ServerLoopHandlers {
    /// The server's version at the last update.
    version: u64,
    read: Option<HandlerId>,
    write: Option<HandlerId>,
    unmask: Option<HandlerId>,
}

impl ServerLoopHandlers {
    /// Makes the loop watch the server's present descriptors; `handler` makes the value that the loop passes back.
    ///
    /// # Errors
    /// When descriptors have run out. Missing handlers are added at the next call, but the server cannot work
    /// without them: call [`Server::disconnect`].
    pub fn update<D: PciDevice, H: Copy, T: Copy>(
        &mut self,
        cx: &mut Context<H, T>,
        server: &Server<D>,
        handler: impl Fn(ServerReadiness) -> H,
    ) -> io::Result<()> {
        if self.version != server.watched_descriptors_version() {
            self.remove(cx);
            self.version = server.watched_descriptors_version();
        }
        let (socket, unmask) = (server.socket(), server.unmask_fd());
        let registrations = [
            (
                &mut self.read,
                ServerReadiness::Read,
                socket.filter(|_| server.wants_read()),
            ),
            (
                &mut self.write,
                ServerReadiness::Write,
                socket.filter(|_| server.wants_write()),
            ),
            (&mut self.unmask, ServerReadiness::Unmask, unmask),
        ];
        for (handler_id, event, wanted_fd) in registrations {
            match (*handler_id, wanted_fd) {
                (None, Some(fd)) => {
                    let interest = match event {
                        ServerReadiness::Read | ServerReadiness::Unmask => Interest::Readable,
                        ServerReadiness::Write => Interest::Writable,
                    };
                    let fd = fd.try_clone_to_owned()?;
                    *handler_id = Some(cx.add(fd, interest, handler(event))?);
                }
                (Some(id), None) => {
                    cx.delete(id);
                    *handler_id = None;
                }
                (None, None) | (Some(_), Some(_)) => {}
            }
        }
        Ok(())
    }

    /// Removes all handlers from the loop.
    pub fn remove<H: Copy, T: Copy>(&mut self, cx: &mut Context<H, T>) {
        for handler_id in [&mut self.read, &mut self.write, &mut self.unmask] {
            if let Some(id) = handler_id.take() {
                cx.delete(id);
            }
        }
    }
}
