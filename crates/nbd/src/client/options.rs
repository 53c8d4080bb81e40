//! Options of a client: the server's address, the export, and how long broken connections are waited for.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tls::{ClientCredentials, ServerName};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A TCP port.
    Inet {
        /// Name or address of the host.
        host: String,
        /// The port.
        port: u16,
        /// Its IPv4 addresses are used.
        uses_ipv4: bool,
        /// Its IPv6 addresses are used.
        uses_ipv6: bool,
    },
    /// A Unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
    },
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Inet { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            ServerAddress::Inet { host, port, .. } => write!(f, "{host}:{port}"),
            ServerAddress::Unix { path } => path.display().fmt(f),
        }
    }
}

/// Certificates with which connections are encrypted.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The authority of the server's certificate, and the client's own one.
    pub credentials: ClientCredentials,
    /// The name that the server's certificate has to have.
    pub server_name: ServerName,
}

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The server.
    pub server: ServerAddress,
    /// The name of the export; empty for the default one.
    pub export: String,
    /// How long requests wait for a new connection after one has broken, before they fail.
    pub reconnect_delay: Duration,
    /// How long opening tries again when the server cannot be reached; zero: one attempt.
    pub open_timeout: Duration,
    /// How long one attempt to connect may take, after the end of earlier connections.
    pub attempt_timeout: Duration,
    /// How long requests of a source that is to end, or of a cancelled job, wait for an answer before they are given up. Those of the
    /// source wait as long for a connection.
    pub stop_timeout: Duration,
    /// All connections use TLS, or none does.
    pub tls: Option<ClientTls>,
}

impl fmt::Display for ClientOptions {
    /// For log lines and errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "export '{}' of {}", self.export, self.server)
    }
}
