//! Opening of exports of NBD servers (driver `nbd`), and the iothreads that may use them.

use std::sync::Arc;
use std::time::Duration;

use block::{Node, NodeError};
use nbd::client::{
    BlockSizes, ClientOptions, Disk, Negotiated, ReplyStyle, ServerAddress, launcher,
};
use options::{BlockdevOptions, Discard, ExportOptions, NbdOptions, NbdServerType};

use serde_json::{Value, json};

use crate::error::BoxError;
use crate::state::objects::{DEFAULT_IOTHREAD, DaemonObjects};
use crate::state::tls::TlsOfNewNode;

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
    let disk = Disk::restore(client_options(export, tls), negotiated);
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

/// Refuses an export of a node on several iothreads, or on another one than the other exports of its disk, if the NBD server of
/// the disk allows one connection only.
pub(crate) fn check_one_iothread_if_one_connection(
    options: &ExportOptions,
    objects: &DaemonObjects,
) -> Result<(), BoxError> {
    let luns = options.kind.luns().into_iter().flatten();
    let names = luns.map(|lun| &lun.node_name).chain([&options.node_name]);
    for open in names.filter_map(|name| objects.find_node(name)) {
        check_iothreads_of_node(options, &open.node, objects)?;
    }
    Ok(())
}

fn check_iothreads_of_node(
    options: &ExportOptions,
    node: &Node,
    objects: &DaemonObjects,
) -> Result<(), BoxError> {
    let Some(disk) = node.underlying_nbd() else {
        return Ok(());
    };
    if disk.features().multi_conn {
        return Ok(());
    }
    let uses_disk = |node: &Node| {
        let other = node.underlying_nbd();
        other.is_some_and(|other| Arc::ptr_eq(other, disk))
    };
    let others = objects.exports.iter().filter(|export| {
        let mut disks = export.disks.iter();
        disks.any(|disk| uses_disk(&disk.node.get()))
    });
    let others = others.map(|export| &export.options);
    let mut iothreads: Vec<&str> = Vec::new();
    for export in others.chain([options]) {
        match export.iothreads.as_slice() {
            [] => iothreads.push(DEFAULT_IOTHREAD),
            named => iothreads.extend(named.iter().map(String::as_str)),
        }
    }
    iothreads.sort_unstable();
    iothreads.dedup();
    match iothreads.as_slice() {
        [_] | [] => Ok(()),
        several => Err(format!(
            "node '{}' is {}, whose server allows one connection (it does not offer NBD_FLAG_CAN_MULTI_CONN): only one \
             iothread can serve it, not {}",
            node.name(),
            disk.options(),
            several.join(", ")
        )
        .into()),
    }
}
