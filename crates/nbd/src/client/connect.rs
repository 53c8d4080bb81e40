//! Connects to a server, with a deadline for everything: addresses, connection, handshake.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tls::Session;

use super::ending::wait_for_ending;
use super::handshake::{Greeted, HandshakeError, Negotiated, ReplyStyle};
use super::options::{ClientOptions, ClientTls, ServerAddress};
use super::socket::{Encryption, Socket};
use crate::wire::{EXTENDED_REQUEST_MAGIC, ExtendedRequest, REQUEST_MAGIC, Request, command};

/// A host that does not acknowledge data for this long, or does not answer probes of an idle connection, is gone.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of the probes of an idle connection.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name of the host was not resolved.
    #[error("cannot find the address of '{host}': {error}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error.
        error: io::Error,
    },
    /// The server cannot be reached.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The thread that starts others to connect could not be started.
    #[error("cannot start a thread: {0}")]
    NoLauncher(io::Error),
    /// Another connection has to end before.
    #[error("the server has not ended a connection on which it did not answer")]
    PreviousNotEnded,
    /// The handshake failed.
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    /// The export is not as it was when the disk was opened.
    #[error("{0}")]
    Changed(String),
}

impl ConnectError {
    /// Whether another attempt may succeed soon: the server does not run yet, or is ending.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            ConnectError::Resolve { .. }
            | ConnectError::Connect(_)
            | ConnectError::PreviousNotEnded => true,
            // What TLS refuses, it refuses again.
            ConnectError::Handshake(HandshakeError::Io(error)) => {
                error.kind() != io::ErrorKind::InvalidData
            }
            ConnectError::NoLauncher(_) | ConnectError::Handshake(_) | ConnectError::Changed(_) => {
                false
            }
        }
    }
}

/// A connection that has entered transmission. The socket does not block.
pub(super) struct Connected {
    pub socket: Socket,
    pub negotiated: Negotiated,
}

impl Connected {
    /// Ends the session by the request for that, which has no reply. A socket that is full or broken is closed without.
    pub fn disconnect(mut self) {
        match self.negotiated.replies {
            ReplyStyle::Extended => self.socket.send_last(
                &ExtendedRequest {
                    magic: EXTENDED_REQUEST_MAGIC,
                    command: command::DISC,
                    ..ExtendedRequest::default()
                }
                .encode(),
            ),
            ReplyStyle::Simple | ReplyStyle::Structured => self.socket.send_last(
                &Request {
                    magic: REQUEST_MAGIC,
                    command: command::DISC,
                    ..Request::default()
                }
                .encode(),
            ),
        }
    }
}

/// Connects to the server and carries out the handshake, after the end of connections that this process has ended. Those are waited
/// for until the deadline, while the rest takes `attempt_timeout` at most.
pub(super) fn connect(
    options: &ClientOptions,
    deadline: Instant,
) -> Result<Connected, ConnectError> {
    if !wait_for_ending(&[options], deadline) {
        return Err(ConnectError::PreviousNotEnded);
    }
    let deadline = deadline.min(Instant::now() + options.attempt_timeout);
    match &options.server {
        ServerAddress::Inet {
            host,
            port,
            uses_ipv4,
            uses_ipv6,
        } => {
            let is_used = |address: &SocketAddr| match address {
                SocketAddr::V4(_) => *uses_ipv4,
                SocketAddr::V6(_) => *uses_ipv6,
            };
            let stream = connect_tcp(host, *port, is_used, deadline)?;
            enter_export(stream, options, deadline)
        }
        ServerAddress::Unix { path } => {
            let stream = connect_unix(path, deadline).map_err(ConnectError::Connect)?;
            enter_export(stream, options, deadline)
        }
    }
}

/// Connects to one of the addresses of a host that are used.
fn connect_tcp(
    host: &str,
    port: u16,
    is_used: impl Fn(&SocketAddr) -> bool,
    deadline: Instant,
) -> Result<TcpStream, ConnectError> {
    let addresses = (host, port).to_socket_addrs();
    let addresses = addresses.map_err(|error| ConnectError::Resolve {
        host: host.to_owned(),
        error,
    })?;
    let mut last_error = io::Error::new(
        io::ErrorKind::NotFound,
        "the host has no address, or none that server.ipv4 and server.ipv6 allow",
    );
    for address in addresses.filter(is_used) {
        let connected = rest_until(deadline)
            .and_then(|rest| TcpStream::connect_timeout(&address, rest))
            .and_then(|stream| set_up_tcp(&stream).map(|()| stream));
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => last_error = error,
        }
    }
    Err(ConnectError::Connect(last_error))
}

/// Sends small messages at once, and has the kernel find out that the host is gone.
fn set_up_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    let probes = DEAD_PEER_TIMEOUT.as_secs() / PROBE_INTERVAL.as_secs();
    sockopt::set_tcp_keepcnt(stream, u32::try_from(probes).unwrap_or(u32::MAX))?;
    let timeout = u32::try_from(DEAD_PEER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, timeout)?)
}

/// Connects to a Unix socket. The kernel waits, up to the deadline, while too many clients wait to be accepted.
fn connect_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(rest_until(deadline)?))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket.into())
}

/// Carries out the handshake.
fn enter_export<S: Read + Write + AsFd + Into<OwnedFd>>(
    stream: S,
    options: &ClientOptions,
    deadline: Instant,
) -> Result<Connected, ConnectError> {
    let mut stream = DeadlineStream { stream, deadline };
    let greeted = Greeted::begin(&mut stream)?;
    let (tls, negotiated) = match &options.tls {
        None => (None, greeted.enter(&mut stream, &options.export)?),
        Some(tls) => {
            let mut tls = start_tls(&mut stream, &greeted, tls)?;
            let entered = greeted.enter(&mut tls.stream(&mut stream), &options.export);
            let negotiated = entered.map_err(HandshakeError::after_tls)?;
            (Some(Box::new(tls)), negotiated)
        }
    };
    let fd: OwnedFd = stream.stream.into();
    let set_nonblocking = rustix::io::ioctl_fionbio(&fd, true);
    set_nonblocking.map_err(|error| ConnectError::Connect(error.into()))?;
    let socket = Socket { fd, tls };
    Ok(Connected { socket, negotiated })
}

/// Begins TLS, and checks that it is the right server.
fn start_tls(
    stream: &mut (impl Read + Write),
    greeted: &Greeted,
    tls: &ClientTls,
) -> Result<Encryption, ConnectError> {
    greeted.request_tls(stream)?;
    let session = Session::client(&tls.credentials, tls.server_name.clone());
    let mut session = session.map_err(HandshakeError::from)?;
    session.handshake(stream).map_err(HandshakeError::from)?;
    Ok(Encryption::new(session))
}

/// The time until a deadline, or the error for one that has passed.
fn rest_until(deadline: Instant) -> io::Result<Duration> {
    let rest = deadline.saturating_duration_since(Instant::now());
    // A timeout of zero is none, and the kernel rounds to its ticks.
    if rest < Duration::from_millis(1) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(rest)
}

/// A stream whose operations end at a deadline, however slowly the peer sends.
pub(super) struct DeadlineStream<S> {
    pub stream: S,
    pub deadline: Instant,
}

impl<S: Read + AsFd> Read for DeadlineStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = rest_until(self.deadline)?;
        sockopt::set_socket_timeout(&self.stream, Timeout::Recv, Some(rest))?;
        self.stream.read(buffer)
    }
}

impl<S: Write + AsFd> Write for DeadlineStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let rest = rest_until(self.deadline)?;
        sockopt::set_socket_timeout(&self.stream, Timeout::Send, Some(rest))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
