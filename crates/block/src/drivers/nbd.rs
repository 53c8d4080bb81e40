//! Driver `nbd`: the geometry and the route of an export of an NBD server.

use std::sync::Arc;

use nbd::client::Disk;

use crate::SECTOR_BYTES;
use crate::drivers::network_route::attach_network_route;
use crate::error::NodeError;
use crate::node::{AttachContext, DiscardLimits, Driver, Geometry, Node};
use crate::route::Route;

/// Most bytes of one discard or write-zeroes request: bounds the work of the server.
const MAX_DISCARD_BYTES: u64 = 1 << 30;

/// The geometry of an export, whose options allow writes unless `read_only`. A last sector that is not complete is not shown.
///
/// # Errors
/// The export is read-only, or has no sector.
pub(crate) fn geometry_of_export(disk: &Disk, read_only: bool) -> Result<Geometry, NodeError> {
    let export = || disk.options().to_string();
    if disk.features().read_only && !read_only {
        return Err(NodeError::ReadOnlyExport { export: export() });
    }
    let found = disk.negotiated();
    let block = found.blocks.minimum.max(512);
    let size = found.size / u64::from(block) * u64::from(block);
    if size == 0 || i64::try_from(size).is_err() {
        let size = found.size;
        let export = export();
        return Err(NodeError::ExportSize { export, size });
    }
    if size != found.size {
        tracing::warn!(
            size,
            found = found.size,
            "the size of {} is no multiple of its block: the rest is not used",
            export()
        );
    }
    debug_assert!(size.is_multiple_of(SECTOR_BYTES));
    let preferred = found.blocks.preferred.max(block);
    Ok(Geometry {
        size,
        logical_block_size: block,
        physical_block_size: preferred.min(1 << 16),
        min_io_size: preferred,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: preferred,
            max_bytes: MAX_DISCARD_BYTES,
        },
    })
}

impl Driver for Arc<Disk> {
    fn nbd(&self) -> Option<&Arc<Disk>> {
        Some(self)
    }

    /// Attaches the export to the iothread, with flushes if the server has them.
    fn attach_route(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route {
        attach_network_route(self.clone(), node, self.features().flush, cx)
    }
}
