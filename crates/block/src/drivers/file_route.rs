//! The driver's part that files and block devices share (`file`, `host_device`): their routes and allocated parts.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use engine::Errno;

use super::ring_range::RingRangeTask;
use crate::disk_file::DiskFile;
use crate::disk_file::allocation::Allocation;
use crate::node::{AttachContext, Driver, Node};
use crate::route::task::TaskNode;
use crate::route::{AttachedStorage, Carrier, FileTarget, OpHandler, Route};

impl Driver for Arc<DiskFile> {
    fn file(&self) -> Option<&Arc<DiskFile>> {
        Some(self)
    }

    fn fd_for_handover(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    /// The data and holes of a file. Devices and file systems that do not report them give `None`.
    fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Option<Vec<Allocation>>, Errno> {
        if self.device_block.is_some() {
            return Ok(None);
        }
        match self.query_allocation(offset, offset + len, most) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
            pieces => pieces.map(Some),
        }
    }

    /// Attaches the file to the backend that carries it. On a ring, an async task carries out discards and
    /// write-zeroes. Flushes do nothing where nothing has to be flushed, nor do discards without `unmap`.
    fn attach_route(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route {
        let carrier = cx.attach_file(self);
        let target = FileTarget {
            file: self.clone(),
            carrier,
            base: 0,
            unmap: node.passes_discards(),
        };
        let handler = || OpHandler::File(target.clone());
        let range_task: Option<Rc<dyn TaskNode>> = match carrier {
            Carrier::Ring(_) => Some(Rc::new(RingRangeTask {
                target: target.clone(),
            })),
            Carrier::Native | Carrier::Workers => None,
        };
        let range_handler = || range_task.clone().map_or_else(handler, OpHandler::Task);
        let has_cache = !self.no_flush && !node.read_only();
        Route {
            read: handler(),
            write: handler(),
            zeroes: range_handler(),
            discard: if node.passes_discards() {
                range_handler()
            } else {
                OpHandler::Nothing
            },
            flush: match has_cache {
                true => OpHandler::File(FileTarget {
                    carrier: cx.carrier_of_flushes(carrier),
                    ..target.clone()
                }),
                false => OpHandler::Nothing,
            },
            storage: vec![AttachedStorage::File(self.clone())],
            merging_helps: true,
            disk: Some(target.clone()),
        }
    }
}
