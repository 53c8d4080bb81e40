//! Sockets that monitors are reached by, made in the order of the command line.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use listener::Listener;
use options::{ChardevOptions, SocketAddr};
use qmp::Door;
use rustix::event::{PollFd, PollFlags, poll};

use crate::Failure;

/// Those that no monitor has taken yet.
#[derive(Default)]
pub(crate) struct Chardevs(HashMap<String, Door>);

impl Chardevs {
    /// Listens or connects; with `wait` until somebody has come, or `end` is readable.
    pub fn add(&mut self, options: &ChardevOptions, end: BorrowedFd<'_>) -> Result<(), Failure> {
        let door = match (&options.addr, options.server) {
            (SocketAddr::Unix { path }, false) => {
                let stream = UnixStream::connect(path);
                Door::Connected(stream.map_err(|error| {
                    format!(
                        "--chardev: cannot connect to {}: {error}; is somebody listening there?",
                        path.display()
                    )
                })?)
            }
            (SocketAddr::Unix { path }, true) => listening(Listener::bind(path)?, options, end)?,
            (SocketAddr::Fd { fd }, _) => {
                // SAFETY: the number is the user's word for a socket that was made for us; nothing
                // else in this process has it, since everything else is opened without giving
                // numbers away.
                listening(unsafe { Listener::inherit(*fd) }?, options, end)?
            }
        };
        self.0.insert(options.id.clone(), door);
        Ok(())
    }

    /// A monitor takes one.
    pub fn take(&mut self, id: &str) -> Result<Door, Failure> {
        let found = self.0.remove(id);
        found.ok_or_else(|| format!("there is no chardev '{id}'").into())
    }
}

fn listening(
    listener: Listener,
    options: &ChardevOptions,
    end: BorrowedFd<'_>,
) -> Result<Door, Failure> {
    listener.socket().set_nonblocking(true)?;
    let first = match options.wait {
        true => first_client(&listener, end)?,
        false => None,
    };
    Ok(Door::Listening(listener, first))
}

/// Waits for a client; `None` when the program is to end before one has come.
fn first_client(listener: &Listener, end: BorrowedFd<'_>) -> Result<Option<UnixStream>, Failure> {
    tracing::info!("waiting for a client of a monitor (wait=off: go on without)");
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(listener.socket().as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(end, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(None);
        }
        match listener.socket().accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            // It has left again.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
