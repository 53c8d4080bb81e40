//! A server's descriptors as handlers of an event loop.
//!
//! They come and go with front-ends, and with what those connect; a socket is watched for writing only while something
//! waits to be sent. So after each call of a [`Server`]'s methods the loop is told what has changed, which is
//! mostly nothing. The loop owns what it watches, so it gets duplicates; a front-end hears that its
//! connection has ended when the loop's is closed, too.

use std::io;

use iothread::event_loop::{Context, HandlerId, Interest};

use crate::device::PciDevice;
use crate::server::Server;

/// What became ready, and so which method is to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// [`Server::readable`].
    Read,
    /// [`Server::writable`].
    Write,
    /// [`Server::unmasked`].
    Unmask,
}

/// What a loop watches for one server.
#[derive(Default)]
pub struct Watches {
    /// That of the server, when the loop was told last.
    generation: u64,
    read: Option<HandlerId>,
    write: Option<HandlerId>,
    unmask: Option<HandlerId>,
}

impl Watches {
    /// Has the loop watch what the server wants watched now; `handler` is what the plane hears back.
    ///
    /// # Errors
    /// When descriptors have run out. What could not be watched is tried again at the next call; to go on
    /// without it makes no sense: [`Server::disconnect`].
    pub fn update<D: PciDevice, H: Copy, T: Copy>(
        &mut self,
        cx: &mut Context<H, T>,
        server: &Server<D>,
        handler: impl Fn(Watched) -> H,
    ) -> io::Result<()> {
        if self.generation != server.generation() {
            self.remove(cx);
            self.generation = server.generation();
        }
        let (socket, unmask) = (server.socket(), server.unmask_fd());
        let all = [
            (
                &mut self.read,
                Watched::Read,
                socket.filter(|_| server.wants_read()),
            ),
            (
                &mut self.write,
                Watched::Write,
                socket.filter(|_| server.wants_write()),
            ),
            (&mut self.unmask, Watched::Unmask, unmask),
        ];
        for (watching, watched, wanted) in all {
            match (*watching, wanted) {
                (None, Some(fd)) => {
                    let interest = match watched {
                        Watched::Read | Watched::Unmask => Interest::Readable,
                        Watched::Write => Interest::Writable,
                    };
                    let fd = fd.try_clone_to_owned()?;
                    *watching = Some(cx.add(fd, interest, handler(watched))?);
                }
                (Some(id), None) => {
                    cx.delete(id);
                    *watching = None;
                }
                (None, None) | (Some(_), Some(_)) => {}
            }
        }
        Ok(())
    }

    /// Has the loop watch nothing any more.
    pub fn remove<H: Copy, T: Copy>(&mut self, cx: &mut Context<H, T>) {
        for watching in [&mut self.read, &mut self.write, &mut self.unmask] {
            if let Some(id) = watching.take() {
                cx.delete(id);
            }
        }
    }
}
