//! `AttachContext`: makes the routes of a node and of all nodes below it when a source attaches to it on its iothread.

use std::sync::Arc;

use super::Node;
use crate::disk_file::DiskFile;
use crate::io::{IoContext, Watch};
use crate::route::{Carrier, Route};

/// The I/O context that a source attaches on, as drivers use it.
pub(crate) struct AttachContext<'a> {
    io: &'a mut IoContext,
    watch: Watch<'a>,
}

impl<'a> AttachContext<'a> {
    pub fn new(io: &'a mut IoContext, watch: Watch<'a>) -> Self {
        AttachContext { io, watch }
    }

    /// Attaches to a node.
    pub fn attach(&mut self, node: &Node) -> Route {
        node.driver.attach(node, self)
    }

    /// The backend that carries a file for this source, until the source detaches.
    pub fn attach_file(&mut self, file: &Arc<DiskFile>) -> Carrier {
        self.io.attach_file(file, self.watch)
    }

    /// The backend that carries the flushes of a file: Linux AIO has none before Linux 4.18.
    pub fn carrier_of_flushes(&self, carrier: Carrier) -> Carrier {
        self.io.carrier_of_flushes(carrier)
    }
}
