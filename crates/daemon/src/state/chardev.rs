//! Character devices, which are the sockets of monitors: opens, replaces, lists and closes them, and gives them to monitors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use options::{ChardevOptions, SocketAddr};
use qmp::{ClientCount, Endpoint};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use unix_socket::accept::client_if_present;
use unix_socket::listener::{AllowedPeers, Listener};

use crate::errno_text::errno_text;
use crate::error::BoxError;
use crate::service::InheritedAndUsedSockets;

/// All character devices, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Chardevs(Vec<Chardev>);

/// A character device.
pub(crate) struct Chardev {
    options: ChardevOptions,
    state: ChardevUse,
}

/// Whether a monitor uses it.
enum ChardevUse {
    Unused(Endpoint),
    /// Counts the clients of the monitor.
    InUse(ClientCount),
}

impl Chardev {
    /// The id that the options give.
    pub fn id(&self) -> &str {
        &self.options.settings.id
    }

    /// The options that it was added with.
    pub fn options(&self) -> &ChardevOptions {
        &self.options
    }

    /// Whether a monitor uses it.
    pub fn is_used_by_monitor(&self) -> bool {
        matches!(self.state, ChardevUse::InUse(_))
    }

    /// Its address as QEMU writes it, which `query-chardev` calls its filename.
    pub fn qemu_filename(&self) -> String {
        let is_connected = match &self.state {
            ChardevUse::Unused(Endpoint::Connected(_)) => true,
            ChardevUse::Unused(Endpoint::Listening(_, first_client)) => first_client.is_some(),
            ChardevUse::InUse(clients) => clients.get() > 0,
        };
        let prefix = if is_connected { "" } else { "disconnected:" };
        let suffix = if self.options.settings.server {
            ",server=on"
        } else {
            ""
        };
        match &self.options.addr {
            SocketAddr::Unix { path } => format!("{prefix}unix:{}{suffix}", path.display()),
            SocketAddr::Fd { fd } => format!("{prefix}fd:{fd}{suffix}"),
            SocketAddr::FdName { name } => format!("{prefix}fd:{name}{suffix}"),
        }
    }
}

impl Chardevs {
    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Chardev> {
        self.0.iter()
    }

    /// The character device of this id, if there is one.
    pub fn get(&self, id: &str) -> Option<&Chardev> {
        self.0.iter().find(|chardev| chardev.id() == id)
    }

    /// Listens or connects. With `wait`, it waits until a client has connected or `stop_fd` is readable.
    pub fn open_and_add(
        &mut self,
        options: &ChardevOptions,
        inherited: &mut InheritedAndUsedSockets,
        stop_fd: BorrowedFd<'_>,
    ) -> Result<(), BoxError> {
        self.0.push(open_chardev(options, inherited, stop_fd)?);
        Ok(())
    }

    /// Replaces an unused character device by a new one of the same name.
    pub fn replace_unused(
        &mut self,
        options: &ChardevOptions,
        inherited: &mut InheritedAndUsedSockets,
        stop_fd: BorrowedFd<'_>,
    ) -> Result<(), BoxError> {
        let new = open_chardev(options, inherited, stop_fd)?;
        self.remove(&options.settings.id);
        self.0.push(new);
        Ok(())
    }

    /// Closes an unused character device.
    pub fn remove(&mut self, id: &str) {
        self.0.retain(|chardev| chardev.id() != id);
    }

    /// Passes the socket to `open_monitor`, which returns the count of clients of its monitor.
    pub fn attach_monitor_if_unused(
        &mut self,
        id: &str,
        open_monitor: impl FnOnce(Endpoint) -> ClientCount,
    ) -> Result<(), BoxError> {
        let index = self.0.iter().position(|chardev| chardev.id() == id);
        let index = index.ok_or_else(|| format!("there is no chardev '{id}'"))?;
        let Chardev { options, state } = self.0.remove(index);
        let state = match state {
            ChardevUse::Unused(endpoint) => ChardevUse::InUse(open_monitor(endpoint)),
            in_use @ ChardevUse::InUse(_) => in_use,
        };
        self.0.insert(index, Chardev { options, state });
        Ok(())
    }
}

/// Connects or listens, as the options say, for a character device that no monitor uses yet.
fn open_chardev(
    options: &ChardevOptions,
    inherited: &mut InheritedAndUsedSockets,
    stop_fd: BorrowedFd<'_>,
) -> Result<Chardev, BoxError> {
    let peers = match (&options.settings.users, &options.addr) {
        (Some(users), _) => AllowedPeers::Users(users.clone()),
        (None, SocketAddr::Unix { .. }) => AllowedPeers::User,
        (None, SocketAddr::Fd { .. } | SocketAddr::FdName { .. }) => AllowedPeers::AsUmask,
    };
    let endpoint = match (&options.addr, options.settings.server) {
        (SocketAddr::Unix { path }, false) => {
            let stream = connect_nonblocking(path).map_err(|error| {
                format!(
                    "Failed to connect to '{}': {}",
                    path.display(),
                    errno_text(&error)
                )
            });
            Endpoint::Connected(stream?)
        }
        (addr, _) => make_endpoint_after_optional_wait(
            inherited.take_or_bind_listener(addr, peers)?,
            options,
            stop_fd,
        )?,
    };
    Ok(Chardev {
        options: options.clone(),
        state: ChardevUse::Unused(endpoint),
    })
}

/// Connects to a Unix socket; an error if the server's backlog is full, since it is slow to accept.
fn connect_nonblocking(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Makes an endpoint of a listening socket, after its first client has connected if the options wait for that.
fn make_endpoint_after_optional_wait(
    listener: Listener,
    options: &ChardevOptions,
    stop_fd: BorrowedFd<'_>,
) -> Result<Endpoint, BoxError> {
    listener.socket().set_nonblocking(true)?;
    let first_client = match options.waits_for_client() {
        true => wait_for_first_client(&listener, stop_fd)?,
        false => None,
    };
    Ok(Endpoint::Listening(listener, first_client))
}

/// Waits for a client; `None` if the daemon is to stop before one has connected.
fn wait_for_first_client(
    listener: &Listener,
    stop_fd: BorrowedFd<'_>,
) -> Result<Option<UnixStream>, BoxError> {
    tracing::info!("waiting for a client of a monitor (wait=off: do not wait)");
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(listener.socket().as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(stop_fd, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(None);
        }
        if let Some(stream) = client_if_present(listener.accept())?.flatten() {
            return Ok(Some(stream));
        }
    }
}
