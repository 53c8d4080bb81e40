//! Driver `null-co`: geometry and routes of a disk that stores nothing, for measuring everything around one.

use crate::drivers::file::MAX_DISCARD_BYTES;
use crate::node::{AttachContext, DiscardLimits, Driver, Geometry, Node};
use crate::null_disk::NullOptions;
use crate::route::{OpHandler, Route};

/// The geometry of a null disk.
pub(crate) fn geometry(options: &NullOptions) -> Geometry {
    Geometry {
        size: options.size.next_multiple_of(crate::SECTOR_BYTES),
        logical_block_size: 512,
        physical_block_size: 512,
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: 512,
            max_bytes: MAX_DISCARD_BYTES,
        },
    }
}

impl Driver for NullOptions {
    /// A route whose operations all complete in the queue of null disks.
    fn attach_route(&self, _: &Node, _: &mut AttachContext<'_>) -> Route {
        let handler = || OpHandler::Null(*self);
        Route {
            read: handler(),
            write: handler(),
            zeroes: handler(),
            discard: handler(),
            flush: handler(),
            storage: Vec::new(),
            merging_helps: false,
            disk: None,
        }
    }
}
