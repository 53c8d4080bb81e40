//! The route of a node on a disk behind a network.

use std::sync::Arc;

use crate::network::{NetworkDisk, NetworkTarget};
use crate::node::{AttachContext, Node};
use crate::route::{AttachedStorage, OpHandler, Route};

/// Attaches a disk to the iothread. Flushes of read-only nodes do nothing, nor do those of a disk without flushes
/// (`has_flush`), nor discards without `unmap`.
pub(super) fn attach_network_route(
    disk: Arc<dyn NetworkDisk>,
    node: &Node,
    has_flush: bool,
    cx: &mut AttachContext<'_>,
) -> Route {
    let target = NetworkTarget {
        queue: cx.attach_network_disk(&disk),
        base: 0,
        unmap: node.passes_discards(),
        group: cx.request_group(),
    };
    let handler = || OpHandler::Network(target.clone());
    let handler_if = |is_passed| match is_passed {
        true => handler(),
        false => OpHandler::Nothing,
    };
    Route {
        read: handler(),
        write: handler(),
        zeroes: handler(),
        discard: handler_if(node.passes_discards()),
        flush: handler_if(!node.read_only() && has_flush),
        storage: vec![AttachedStorage::Network(disk)],
        merging_helps: true,
        disk: None,
    }
}
