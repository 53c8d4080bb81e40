//! Driver `rbd`: opens an image of a Ceph cluster, with its geometry; its routes and allocated parts.

use std::sync::Arc;

use ceph::Image;
use engine::Errno;

use crate::SECTOR_BYTES;
use crate::disk_file::allocation::Allocation;
use crate::drivers::network_route::attach_network_route;
use crate::error::NodeError;
use crate::node::{AttachContext, DiscardLimits, Driver, Geometry, Node};
use crate::rbd::{RbdDisk, RbdOptions};
use crate::route::Route;

/// Most bytes of one discard or write-zeroes request: bounds the work of librbd, which makes a request to the cluster for
/// each object of the range.
const MAX_DISCARD_BYTES: u64 = 1 << 30;

/// Discards smaller than this, or the parts that are not aligned to it, are skipped by librbd
/// (`rbd_discard_granularity_bytes`).
const DISCARD_GRANULARITY: u32 = 64 << 10;

/// Size of a disk in an image that ends at `end`. A partial last sector is not used, since images do not grow.
pub(crate) fn disk_size_for_end(end: u64) -> u64 {
    end / SECTOR_BYTES * SECTOR_BYTES
}

/// Opens an image, with its geometry.
pub(crate) fn open(
    options: &RbdOptions,
    read_only: bool,
) -> Result<(Arc<RbdDisk>, Geometry), NodeError> {
    let disk = RbdDisk::open(options, read_only)?;
    let (found, image) = (disk.image.geometry().size, disk.image.name());
    let size = disk_size_for_end(found);
    if size == 0 || i64::try_from(size).is_err() {
        return Err(NodeError::ImageSize {
            image: image.to_owned(),
            size: found,
        });
    }
    if size != found {
        tracing::warn!(
            size,
            found,
            "the size of {image} is no multiple of {SECTOR_BYTES}: the rest is not used"
        );
    }
    let geometry = geometry_of_image(&disk.image, size);
    Ok((disk, geometry))
}

/// Requests of a whole stripe use every object of it once; without striping an object is the largest contiguous piece.
fn geometry_of_image(image: &Image, size: u64) -> Geometry {
    let found = image.geometry();
    let stripe = found.stripe_unit.saturating_mul(found.stripe_count);
    Geometry {
        size,
        logical_block_size: 512,
        physical_block_size: 4096,
        min_io_size: 4096,
        opt_io_size: u32::try_from(stripe.max(found.object_bytes)).unwrap_or(0),
        discard: DiscardLimits {
            granularity: DISCARD_GRANULARITY,
            max_bytes: MAX_DISCARD_BYTES,
        },
    }
}

impl Driver for Arc<RbdDisk> {
    fn image(&self) -> Option<&Arc<RbdDisk>> {
        Some(self)
    }

    fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Option<Vec<Allocation>>, Errno> {
        let extents = self.image.allocations(offset, len, most)?.into_iter();
        let pieces = extents.map(|extent| Allocation {
            len: extent.len,
            allocated: extent.allocated,
        });
        Ok(Some(pieces.collect()))
    }

    /// Attaches the image to the iothread.
    fn attach_route(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route {
        attach_network_route(self.clone(), node, true, cx)
    }
}
