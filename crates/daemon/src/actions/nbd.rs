//! Opening of exports of NBD servers (driver `nbd`).

use std::sync::Arc;
use std::time::Duration;

use block::{Node, NodeError};
use nbd::client::{
    BlockSizes, ClientOptions, Disk, Negotiated, ReplyStyle, ServerAddress, launcher,
};
use options::{BlockdevOptions, Discard, NbdOptions, NbdServerType};
use serde_json::{Value, json};

use crate::error::BoxError;
use crate::state::tls::TlsOfNewNode;

/// How long one attempt to connect may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens an export as a node; for reading only if its options allow that and the export is read-only. A node that is reopened
/// (`old`) keeps its connections.
pub(crate) fn open_export(
    node: &BlockdevOptions,
    export: &NbdOptions,
    tls: &TlsOfNewNode,
    old: Option<&Node>,
) -> Result<Arc<Node>, NodeError> {
    let disk = match old.and_then(Node::underlying_nbd) {
        Some(disk) => disk.clone(),
        None => Disk::open(&client_options(export, tls))?,
    };
    node_of_export(node, &disk)
}

/// A node on an opened export.
fn node_of_export(node: &BlockdevOptions, disk: &Arc<Disk>) -> Result<Arc<Node>, NodeError> {
    let settings = &node.settings;
    let unmap = settings.discard == Discard::Unmap;
    let becomes_read_only = settings.auto_read_only && disk.features().read_only;
    let read_only = settings.read_only || becomes_read_only;
    Node::of_nbd_export(&node.node_name, read_only, unmap, disk)
}

/// Makes a node of an export that the old process has opened in a live upgrade. It connects when it is used: the server may
/// allow one connection, which the old process has until then.
pub(crate) fn restore_export(
    node: &BlockdevOptions,
    export: &NbdOptions,
    tls: &TlsOfNewNode,
    negotiated: Negotiated,
) -> Result<Arc<Node>, NodeError> {
    let disk = Disk::restore(client_options(export, tls), negotiated)?;
    node_of_export(node, &disk)
}

/// What the new process of a live upgrade has to know of an export.
pub(crate) fn export_to_json(disk: &Disk) -> Value {
    let Negotiated {
        size,
        flags,
        blocks,
        ..
    } = disk.negotiated();
    let (minimum, preferred, maximum) = (blocks.minimum, blocks.preferred, blocks.maximum);
    json!({"size": size, "flags": flags, "minimum": minimum, "preferred": preferred, "maximum": maximum})
}

/// Reads [`export_to_json`].
pub(crate) fn export_from_json(json: &Value) -> Option<Negotiated> {
    let number = |name: &str| u32::try_from(json[name].as_u64()?).ok();
    Some(Negotiated {
        size: json["size"].as_u64()?,
        flags: u16::try_from(json["flags"].as_u64()?).ok()?,
        blocks: BlockSizes {
            minimum: number("minimum").filter(|block| block.is_power_of_two())?,
            preferred: number("preferred")?,
            maximum: number("maximum")?,
        },
        // Each connection negotiates its own.
        replies: ReplyStyle::Simple,
    })
}

/// The options as the client has them.
fn client_options(nbd: &NbdOptions, tls: &TlsOfNewNode) -> ClientOptions {
    let server = match nbd.server_type {
        NbdServerType::Inet => ServerAddress::Inet {
            host: nbd.host.clone().unwrap_or_default(),
            port: nbd.port.unwrap_or_default(),
            uses_ipv4: nbd.ip_versions().allow_v4(),
            uses_ipv6: nbd.ip_versions().allow_v6(),
        },
        NbdServerType::Unix => ServerAddress::Unix {
            path: nbd.path.clone().unwrap_or_default(),
        },
    };
    ClientOptions {
        server,
        export: nbd.export.clone().unwrap_or_default(),
        reconnect_delay: Duration::from_secs(nbd.reconnect_delay.into()),
        open_timeout: Duration::from_secs(nbd.open_timeout.into()),
        attempt_timeout: ATTEMPT_TIMEOUT,
        stop_timeout: Duration::from_secs(nbd.stop_timeout.into()),
        tls: tls.client_tls(),
    }
}

/// Refuses a server that is reached by TCP, if the sandbox does not let this process connect.
pub(crate) fn check_may_connect(nbd: &NbdOptions) -> Result<(), BoxError> {
    if nbd.server_type == NbdServerType::Inet
        && sandbox::is_process_confined()
        && !launcher::may_use_tcp()
    {
        let text = "driver nbd: the sandbox was set up without connections over TCP; start the daemon with --sandbox \
                    on,nbd=allow";
        return Err(text.into());
    }
    Ok(())
}
