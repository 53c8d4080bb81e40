//! Sockets that monitors are reached by: those of the command line, and those that come while it runs.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use options::{ChardevOptions, SocketAddr};
use qmp::{ClientCount, Endpoint};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use unix_socket::listener::{Listener, Peers};

use crate::failure::Failure;
use crate::reason::reason;
use crate::service::Inherited;

/// All of them, in the order they were made.
#[derive(Default)]
pub(crate) struct Chardevs(Vec<Chardev>);

/// One socket.
pub(crate) struct Chardev {
    options: ChardevOptions,
    user: User,
}

/// Who has it.
enum User {
    Nobody(Endpoint),
    Monitor(ClientCount),
}

impl Chardev {
    pub fn id(&self) -> &str {
        &self.options.settings.id
    }

    /// How it was made.
    pub fn options(&self) -> &ChardevOptions {
        &self.options
    }

    /// In use by a monitor.
    pub fn is_used(&self) -> bool {
        matches!(self.user, User::Monitor(_))
    }

    /// Where it is, as the field writes it.
    pub fn filename(&self) -> String {
        let connected = match &self.user {
            User::Nobody(Endpoint::Connected(_)) => true,
            User::Nobody(Endpoint::Listening(_, first)) => first.is_some(),
            User::Monitor(clients) => clients.get() > 0,
        };
        let state = if connected { "" } else { "disconnected:" };
        let server = if self.options.settings.server {
            ",server=on"
        } else {
            ""
        };
        match &self.options.addr {
            SocketAddr::Unix { path } => format!("{state}unix:{}{server}", path.display()),
            SocketAddr::Fd { fd } => format!("{state}fd:{fd}{server}"),
            SocketAddr::FdName { name } => format!("{state}fd:{name}{server}"),
        }
    }
}

impl Chardevs {
    pub fn iter(&self) -> impl Iterator<Item = &Chardev> {
        self.0.iter()
    }

    pub fn get(&self, id: &str) -> Option<&Chardev> {
        self.0.iter().find(|chardev| chardev.id() == id)
    }

    /// Listens or connects; with `wait` until somebody has come, or `end` is readable.
    pub fn add(
        &mut self,
        options: &ChardevOptions,
        inherited: &mut Inherited,
        end: BorrowedFd<'_>,
    ) -> Result<(), Failure> {
        self.0.push(open(options, inherited, end)?);
        Ok(())
    }

    /// Another one of that name takes its place, which nobody uses.
    pub fn change(
        &mut self,
        options: &ChardevOptions,
        inherited: &mut Inherited,
        end: BorrowedFd<'_>,
    ) -> Result<(), Failure> {
        let new = open(options, inherited, end)?;
        self.remove(&options.settings.id);
        self.0.push(new);
        Ok(())
    }

    /// Closes one that nobody uses.
    pub fn remove(&mut self, id: &str) {
        self.0.retain(|chardev| chardev.id() != id);
    }

    /// A monitor takes one, and says who is there.
    pub fn attach_monitor(
        &mut self,
        id: &str,
        open: impl FnOnce(Endpoint) -> ClientCount,
    ) -> Result<(), Failure> {
        let place = self.0.iter().position(|chardev| chardev.id() == id);
        let place = place.ok_or_else(|| format!("there is no chardev '{id}'"))?;
        let Chardev { options, user } = self.0.remove(place);
        let user = match user {
            User::Nobody(door) => User::Monitor(open(door)),
            used @ User::Monitor(_) => used,
        };
        self.0.insert(place, Chardev { options, user });
        Ok(())
    }
}

fn open(
    options: &ChardevOptions,
    inherited: &mut Inherited,
    end: BorrowedFd<'_>,
) -> Result<Chardev, Failure> {
    let peers = match (&options.settings.users, &options.addr) {
        (Some(users), _) => Peers::Users(users.clone()),
        (None, SocketAddr::Unix { .. }) => Peers::User,
        (None, SocketAddr::Fd { .. } | SocketAddr::FdName { .. }) => Peers::AsUmask,
    };
    let door = match (&options.addr, options.settings.server) {
        (SocketAddr::Unix { path }, false) => {
            let stream = connected(path).map_err(|error| {
                format!(
                    "Failed to connect to '{}': {}",
                    path.display(),
                    reason(&error)
                )
            });
            Endpoint::Connected(stream?)
        }
        (addr, _) => listening(inherited.listen(addr, peers)?, options, end)?,
    };
    Ok(Chardev {
        options: options.clone(),
        user: User::Nobody(door),
    })
}

/// Connects, and does not wait for somebody who is slow to accept.
fn connected(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn listening(
    listener: Listener,
    options: &ChardevOptions,
    end: BorrowedFd<'_>,
) -> Result<Endpoint, Failure> {
    listener.socket().set_nonblocking(true)?;
    let first = match options.waits() {
        true => first_client(&listener, end)?,
        false => None,
    };
    Ok(Endpoint::Listening(listener, first))
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
        match listener.accept() {
            Ok(Some(stream)) => return Ok(Some(stream)),
            Ok(None) => {}
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
