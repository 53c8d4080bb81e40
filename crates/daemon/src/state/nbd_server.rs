//! The NBD server of the daemon: its options and its listening sockets. Its exports are among all others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nbd_server::{NbdListener, NbdServer, ServerSettings};
use options::{NbdServerAddr, NbdServerOptions};
use unix_socket::listener::AllowedPeers;

use super::DaemonObjects;
use super::export::ExportRemoval;
use crate::error::BoxError;

/// The running server.
pub(crate) struct RunningNbdServer {
    /// With the port that the kernel chose, if any was allowed.
    pub options: NbdServerOptions,
    server: NbdServer,
    /// Duplicates of its TCP sockets, for a live upgrade. Unix sockets are handed over by
    /// [`InheritedAndUsedSockets`](crate::service::InheritedAndUsedSockets).
    tcp_listeners: Vec<OwnedFd>,
}

impl RunningNbdServer {
    /// Adds an export.
    pub fn add_export(&self, export: &Arc<nbd_server::Export>) -> Result<(), BoxError> {
        Ok(self.server.add_export(export)?)
    }

    /// Accepts no clients, or accepts them again.
    pub fn set_accepting_paused(&self, paused: bool) {
        self.server.set_accepting_paused(paused);
    }

    /// Duplicates its TCP sockets, for the successor of a live upgrade.
    pub fn duplicate_tcp_listeners(&self) -> io::Result<Vec<OwnedFd>> {
        self.tcp_listeners.iter().map(OwnedFd::try_clone).collect()
    }
}

impl DaemonObjects {
    /// Starts the server.
    pub fn start_nbd_server(&mut self, options: &NbdServerOptions) -> Result<(), BoxError> {
        if self.nbd_server.is_some() {
            return Err("NBD server already running".into());
        }
        let tls = self.find_server_tls(&options.settings)?;
        let listeners = match &options.addr {
            NbdServerAddr::Socket(addr) => {
                let inherited = &mut self.inherited_sockets;
                let listener = inherited.take_or_bind_listener(addr, AllowedPeers::AsUmask)?;
                vec![NbdListener::Unix(listener)]
            }
            NbdServerAddr::Inet { .. } if !self.handover_nbd_listeners.is_empty() => {
                let handed_over = self.handover_nbd_listeners.drain(..);
                handed_over.map(NbdListener::from_tcp_fd).collect()
            }
            NbdServerAddr::Inet {
                host,
                port,
                ip_versions,
            } => {
                let addresses = options.addr.tcp_addresses();
                bind_all(&addresses, host, *port, ip_versions.allow_v4())?
            }
        };
        let mut options = options.clone();
        let first_port = listeners.iter().find_map(NbdListener::tcp_addr);
        if let (NbdServerAddr::Inet { port, .. }, Some(addr)) = (&mut options.addr, first_port) {
            *port = addr.port();
        }
        let tcp_listeners = listeners.iter().filter_map(NbdListener::duplicate_tcp);
        let tcp_listeners = tcp_listeners.collect::<io::Result<_>>()?;
        let seconds = options.settings.handshake_max_seconds;
        let settings = ServerSettings {
            max_connections: Some(options.settings.max_connections).filter(|most| *most > 0),
            handshake_timeout: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
        };
        let server = NbdServer::start(listeners, settings, tls, self.creates_exports_paused)?;
        self.nbd_server = Some(RunningNbdServer {
            options,
            server,
            tcp_listeners,
        });
        Ok(())
    }

    /// The server; an error with QEMU's text if none runs.
    pub fn require_nbd_server(&self) -> Result<&RunningNbdServer, BoxError> {
        let server = self.nbd_server.as_ref();
        server.ok_or_else(|| "NBD server not running".into())
    }

    /// Begins to remove all exports of the server, disconnects their clients, and ends it.
    pub fn stop_nbd_server(&mut self) -> Result<Vec<ExportRemoval>, BoxError> {
        self.require_nbd_server()?;
        let ids: Vec<String> = self.ids_of_serving_nbd_exports();
        let removals = ids.iter();
        let removals = removals.map(|id| self.remove_export_if_unconnected_or_hard(id, true));
        let removals = removals.collect::<Result<_, _>>()?;
        self.nbd_server = None;
        Ok(removals)
    }
}

/// Listens on these addresses of a host, on the same port. One of several may be missing: a host without IPv6.
fn bind_all(
    addresses: &[SocketAddr],
    host: &str,
    port: u16,
    accepts_ipv4: bool,
) -> Result<Vec<NbdListener>, BoxError> {
    let mut listeners: Vec<NbdListener> = Vec::new();
    let mut failure = None;
    for addr in addresses {
        let mut addr = *addr;
        if let Some(first) = listeners.first().and_then(NbdListener::tcp_addr) {
            addr.set_port(first.port());
        }
        match NbdListener::bind_tcp(addr, accepts_ipv4) {
            Ok(listener) => listeners.push(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => failure = Some(error),
            Err(error) => {
                failure = Some(error);
                listeners.clear();
                break;
            }
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => Err(format!(
            "cannot listen on {host}, port {port}: {error}; choose another port, or an address of this host"
        )
        .into()),
        _ => Ok(listeners),
    }
}
