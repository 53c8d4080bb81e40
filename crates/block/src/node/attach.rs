//! `AttachContext`: makes the routes of a node and of all nodes below it when a source attaches to it on its iothread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use nbd::client::RequestGroup;

use super::Node;
use crate::copy::BlockCopy;
use crate::disk_file::DiskFile;
use crate::io::{IoContext, Watch};
use crate::network::{NetworkDisk, NetworkQueueWithTaskShare};
use crate::route::{Carrier, Route};

/// The I/O context that a source attaches on, as drivers use it.
pub(crate) struct AttachContext<'a> {
    io: &'a mut IoContext,
    watch: Watch<'a>,
    /// The group of requests on the routes that are made, while they are for a job.
    group: Option<Arc<RequestGroup>>,
}

impl<'a> AttachContext<'a> {
    pub fn new(io: &'a mut IoContext, watch: Watch<'a>) -> Self {
        AttachContext {
            io,
            watch,
            group: None,
        }
    }

    /// Attaches to a node. If its dirty bitmaps record, so does the route, and if a job copies it, the route has the job's filter.
    pub fn attach_route(&mut self, node: &Node) -> Route {
        let route = node.driver.attach_route(node, self);
        let route = match node.detect_zeroes.get() {
            Some(mode) => route.detecting_zeroes(*mode),
            None => route,
        };
        let route = node.copy_filter.add_to_route(route, self);
        node.bitmaps().add_recorder_to_route(route)
    }

    /// Attaches to the target of a job, to which only the job's requests go by this route.
    pub fn attach_target(&mut self, copy: &BlockCopy, target: &Node) -> Route {
        let outer = std::mem::replace(&mut self.group, copy.requests_to_target());
        let route = self.attach_route(target);
        self.group = outer;
        route
    }

    /// The group of requests on the route that is made.
    pub fn request_group(&self) -> Option<Arc<RequestGroup>> {
        self.group.clone()
    }

    /// The backend that carries a file for this source, until the source detaches.
    pub fn attach_file(&mut self, file: &Arc<DiskFile>) -> Carrier {
        self.io.attach_file(file, self.watch)
    }

    /// The queue of a disk behind a network on this iothread, until the source detaches.
    pub fn attach_network_disk(
        &mut self,
        disk: &Arc<dyn NetworkDisk>,
    ) -> Rc<RefCell<NetworkQueueWithTaskShare>> {
        self.io.attach_network_disk(disk, self.watch)
    }

    /// The backend that carries the flushes of a file: Linux AIO has none before Linux 4.18.
    pub fn carrier_of_flushes(&self, carrier: Carrier) -> Carrier {
        self.io.carrier_of_flushes(carrier)
    }
}
