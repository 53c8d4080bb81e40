//! The server that accepts an export's front-ends, for vhost-user and vfio-user alike: stops, drains and settles it, and replaces the
//! nodes behind its disks while front-ends are connected.

use std::sync::Arc;

use block::Node;
use iothread::{SocketDeviceCommand, SocketDeviceHandle};
use vhost_user::Server;

use crate::disk::exported_disk::NodeSlot;

/// The server that accepts the front-ends of an export.
pub(crate) enum ExportServer {
    /// Control threads serve the socket, iothreads have the queues.
    VhostUser(Server),
    /// A host adapter: one iothread has the socket and runs the device.
    Adapter(Arc<SocketDeviceHandle>),
    /// An export of the NBD server, which accepts its clients; iothreads have the connections.
    Nbd(Arc<nbd_server::Export>),
}

impl ExportServer {
    /// Stops accepting front-ends if none is connected; false if one is.
    #[must_use]
    pub fn stop_if_unconnected(&self) -> bool {
        match self {
            ExportServer::VhostUser(server) => server.begin_stop_if_unconnected(),
            ExportServer::Adapter(adapter) => adapter.stop_if_idle(),
            ExportServer::Nbd(export) => export.remove_if_unconnected(),
        }
    }

    /// Stops accepting front-ends if those that are connected have hung up, which is not handled yet; false if one has not.
    #[must_use]
    pub fn stop_if_hung_up(&self) -> bool {
        match self {
            ExportServer::Nbd(export) => export.remove_if_hung_up(),
            ExportServer::VhostUser(_) | ExportServer::Adapter(_) => false,
        }
    }

    /// Stops accepting front-ends and disconnects the present one.
    pub fn begin_stop(&self) {
        match self {
            ExportServer::VhostUser(server) => server.begin_stop(),
            ExportServer::Adapter(adapter) => adapter.begin_stop(),
            ExportServer::Nbd(export) => export.begin_remove(),
        }
    }

    /// Waits until all requests in flight have completed, and closes the server.
    pub fn drain_and_close(self) {
        match self {
            ExportServer::VhostUser(server) => drop(server),
            ExportServer::Adapter(adapter) => adapter.stop(),
            ExportServer::Nbd(export) => export.disconnect_and_wait(),
        }
    }

    /// Access to its front-ends.
    pub fn front_end_handle(&self) -> ExportFrontEndHandle {
        match self {
            ExportServer::VhostUser(server) => {
                ExportFrontEndHandle::VhostUser(server.front_end_handle())
            }
            ExportServer::Adapter(adapter) => ExportFrontEndHandle::Adapter(adapter.clone()),
            ExportServer::Nbd(export) => ExportFrontEndHandle::Nbd(export.clone()),
        }
    }
}

/// Access to the front-ends of an export, from any thread.
pub(crate) enum ExportFrontEndHandle {
    VhostUser(vhost_user::FrontEndHandle),
    Adapter(Arc<SocketDeviceHandle>),
    Nbd(Arc<nbd_server::Export>),
}

impl ExportFrontEndHandle {
    /// Returns when all requests that were admitted before the call have completed.
    pub fn wait_for_admitted_requests(&self) {
        match self {
            ExportFrontEndHandle::VhostUser(front_ends) => front_ends.settle_queues(),
            ExportFrontEndHandle::Adapter(adapter) => {
                adapter.send_and_wait(SocketDeviceCommand::Settle);
            }
            ExportFrontEndHandle::Nbd(export) => export.wait_for_submitted_requests(),
        }
    }

    /// Replaces the node behind a disk, and returns when no request uses the old node any more. If both nodes lead to the same
    /// opened disk, queues do not stop: requests in flight stay on the old node while new ones go to the new one. Otherwise
    /// requests in flight complete first.
    pub fn exchange_node_and_wait(&self, slot: &NodeSlot, node: &Arc<Node>) {
        let _exchange = slot.begin_exchange();
        match slot.get().shares_disk_with(node) {
            true => self.send_node_and_wait(slot, node),
            false => self.drain_and_send_node(slot, node),
        }
    }

    /// Replaces the node behind a disk by the one that requests reach already through a filter, and returns when no request uses the
    /// old one any more. Queues do not stop.
    pub fn go_over_to_node_and_wait(&self, slot: &NodeSlot, node: &Arc<Node>) {
        let _exchange = slot.begin_exchange();
        self.send_node_and_wait(slot, node);
    }

    /// Gives queues new routes to their node, and returns when no request uses the old ones any more.
    pub fn renew_routes_and_wait(&self, slot: &NodeSlot) {
        let _exchange = slot.begin_exchange();
        self.send_node_and_wait(slot, &slot.get());
    }

    fn send_node_and_wait(&self, slot: &NodeSlot, node: &Arc<Node>) {
        let set_node = || slot.set(node.clone());
        match self {
            ExportFrontEndHandle::VhostUser(front_ends) => {
                front_ends.exchange_while_running(set_node);
            }
            ExportFrontEndHandle::Adapter(adapter) => {
                set_node();
                adapter.send_and_wait(|reply| SocketDeviceCommand::SetNode(node.clone(), reply));
            }
            ExportFrontEndHandle::Nbd(export) => export.exchange_while_running(set_node, node),
        }
    }

    fn drain_and_send_node(&self, slot: &NodeSlot, node: &Arc<Node>) {
        let set_node = || slot.set(node.clone());
        match self {
            ExportFrontEndHandle::VhostUser(front_ends) => {
                front_ends.exchange_when_drained(set_node)
            }
            ExportFrontEndHandle::Adapter(adapter) => {
                adapter.send_unless_stopped(SocketDeviceCommand::Enable(false));
                adapter.send_and_wait(SocketDeviceCommand::Settle);
                set_node();
                adapter.send_and_wait(|reply| SocketDeviceCommand::SetNode(node.clone(), reply));
                adapter.send_unless_stopped(SocketDeviceCommand::Enable(true));
            }
            ExportFrontEndHandle::Nbd(export) => export.exchange_when_drained(set_node, node),
        }
    }

    /// Notifies the present front-end that the configuration space has changed.
    pub fn notify_virtio_config_changed(&self) {
        if let ExportFrontEndHandle::VhostUser(front_ends) = self {
            front_ends.notify_config_changed_if_wanted();
        }
    }
}

#[cfg(test)]
mod tests {
    use nbd_server::testing::export_without_iothreads;
    use test_support::repeating_thread::while_repeating;

    use super::*;
    use crate::testing::null_disk;

    /// A command that renews routes sends the node that is there, which another command may be about to replace.
    #[test]
    fn routes_that_are_renewed_do_not_bring_back_a_node_that_was_replaced_meanwhile() {
        let nodes = [null_disk(), null_disk()];
        let slot = NodeSlot::new(nodes[0].clone());
        let present = slot.clone();
        let export = export_without_iothreads(true, move || present.get());
        let handle = ExportFrontEndHandle::Nbd(export);
        let renew = || handle.renew_routes_and_wait(&slot);
        while_repeating(renew, || {
            for round in 0..20_000 {
                let node = &nodes[round % 2];
                handle.go_over_to_node_and_wait(&slot, node);
                std::thread::yield_now();
                assert!(Arc::ptr_eq(&slot.get(), node), "round {round}");
            }
        });
    }
}
