//! Constructors of nodes, one for each driver.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::blkdebug::Filter;
use super::raw::Window;
use super::{file, host_device, null_co};
use crate::disk_file::DiskFile;
use crate::disk_file::open::FileOptions;
use crate::error::NodeError;
use crate::faults::Faults;
use crate::node::{Driver, Geometry, Node};
use crate::null_disk::NullOptions;

/// How a node is opened.
#[derive(Clone, Debug)]
pub enum NodeOptions {
    /// A raw image in a file.
    File(FileOptions),
    /// A block device.
    HostDevice(FileOptions),
    /// Nothing: reads and writes succeed.
    Null(NullOptions),
}

impl Node {
    /// Opens a node. `name` is what other options and messages call it.
    ///
    /// # Errors
    /// [`NodeError`]: what was wrong and what to do about it.
    pub fn open(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
    ) -> Result<Arc<Node>, NodeError> {
        Self::open_with(name, read_only, options, None)
    }

    /// The same of a file or device that another process has opened, with the locks that it has. Its path is not looked
    /// at: something else may stand there by now.
    ///
    /// # Errors
    /// As of [`Node::open`].
    pub fn take_over(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
        opened: OwnedFd,
    ) -> Result<Arc<Node>, NodeError> {
        Self::open_with(name, read_only, options, Some(opened))
    }

    fn open_with(
        name: &str,
        read_only: bool,
        options: &NodeOptions,
        opened: Option<OwnedFd>,
    ) -> Result<Arc<Node>, NodeError> {
        let of_file = |(file, geometry): (DiskFile, Geometry), unmap| -> (Box<dyn Driver>, _, _) {
            (Box::new(Arc::new(file)), geometry, unmap)
        };
        let (driver, geometry, unmap) = match options {
            NodeOptions::File(options) => {
                of_file(file::open(options, read_only, opened)?, options.unmap)
            }
            NodeOptions::HostDevice(options) => of_file(
                host_device::open(options, read_only, opened)?,
                options.unmap,
            ),
            NodeOptions::Null(options) => (
                Box::new(*options) as Box<dyn Driver>,
                null_co::geometry(options),
                false,
            ),
        };
        Ok(Node::new(name, geometry, read_only, unmap, driver))
    }

    /// A window of `size` bytes (`None`: to the end) at `offset` of another node: what the `raw`
    /// driver does. Discards are passed on if `unmap`.
    ///
    /// # Errors
    /// [`NodeError::Window`] when it has no byte or does not lie within the node, when its offset is not
    /// a multiple of the node's block, or its size not one of 512.
    pub fn window(
        name: &str,
        below: &Arc<Node>,
        offset: u64,
        size: Option<u64>,
        read_only: bool,
        unmap: bool,
    ) -> Result<Arc<Node>, NodeError> {
        let (window, size, span) = Window::onto(below, offset, size)?;
        let driver = Box::new(window);
        Ok(Node::above(
            name,
            below,
            (size, span),
            read_only,
            unmap,
            driver,
        ))
    }

    /// A filter in front of another node, with these faults: what the `blkdebug` driver does. Discards are passed on if
    /// `unmap`.
    #[must_use]
    pub fn filtered(
        name: &str,
        below: &Arc<Node>,
        faults: Arc<Faults>,
        read_only: bool,
        unmap: bool,
    ) -> Arc<Node> {
        let size = (below.size(), below.span);
        let filter = Filter {
            below: below.clone(),
            faults,
        };
        Node::above(name, below, size, read_only, unmap, Box::new(filter))
    }
}
