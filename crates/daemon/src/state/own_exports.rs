//! Nodes on exports of the daemon's own NBD server. A job that copied a disk there by the network would wait for itself: the write to
//! the target is one to the disk, and has to be copied before.

use std::fs::metadata;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use block::Node;
use nbd::client::ServerAddress;
use options::{ExportKind, NbdServerAddr, SocketAddr};

use super::DaemonObjects;

impl DaemonObjects {
    /// The node that is exported by the own NBD server to the node of driver `nbd` that this one leads to, if it does.
    pub fn node_of_own_export(&self, node: &Node) -> Option<Arc<Node>> {
        let client = node.underlying_nbd()?.options();
        let server = self.nbd_server.as_ref()?;
        if !is_same_server(&client.server, &server.options.addr) {
            return None;
        }
        let export = self.exports.iter().find(|export| {
            let ExportKind::Nbd(nbd) = &export.options.kind else {
                return false;
            };
            let name = nbd.name.as_ref().unwrap_or(&export.options.node_name);
            *name == client.export
        })?;
        Some(export.disks.first()?.node.get())
    }
}

fn is_same_server(client: &ServerAddress, server: &NbdServerAddr) -> bool {
    match (client, server) {
        (
            ServerAddress::Unix { path },
            NbdServerAddr::Socket(SocketAddr::Unix { path: own_path }),
        ) => is_same_file(path, own_path),
        (ServerAddress::Inet { host, port, .. }, NbdServerAddr::Inet { port: own_port, .. }) => {
            port == own_port
                && server
                    .tcp_addresses()
                    .iter()
                    .any(|own| is_host(host, own.ip()))
        }
        _ => false,
    }
}

fn is_same_file(one: &Path, two: &Path) -> bool {
    let identity = |path| metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((identity(one), identity(two)), (Ok(one), Ok(two)) if one == two)
}

/// Whether the host is this address. Of the addresses that a wildcard stands for, only loopback ones are known.
fn is_host(host: &str, own: IpAddr) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    let is_loopback = host == "localhost" || address.is_some_and(|it| it.is_loopback());
    address == Some(own) || is_loopback && (own.is_loopback() || own.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_those_of_a_server_that_listens_there() {
        for (host, own, expected) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("localhost", "::1", true),
            ("127.0.0.1", "0.0.0.0", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "0.0.0.0", false),
            ("127.0.0.1", "192.0.2.1", false),
            ("storage.example", "127.0.0.1", false),
        ] {
            assert_eq!(
                is_host(host, own.parse().unwrap()),
                expected,
                "{host} {own}"
            );
        }
    }
}
