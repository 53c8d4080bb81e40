//! Nodes for the simulator: a disk without a file, and nodes that rewrite whole blocks for small
//! writes, or that delay every other request.

mod gate;
mod rewriting;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::aio::Aio;
use crate::disk_file::DiskFile;
use crate::disk_file::alignment::Alignment;
use crate::disk_file::lock::{ImageAccess, LockedFd, Locking};
use crate::disk_file::open_file_id::OpenFileId;
use crate::disk_file::ops_refused_by_ring::OpsRefusedByRing;
use crate::disk_file::partial_blocks::PartialBlockMode;
use crate::disk_file::simulated::SimulatedDisk;
use crate::error::NodeError;
use crate::node::{Geometry, Node};

impl Node {
    /// A disk with this geometry without a file. Segments have to be aligned to `memory_alignment` bytes.
    ///
    /// # Errors
    /// Only for lack of descriptors.
    pub fn new_simulated(
        geometry: Geometry,
        memory_alignment: u32,
        aio: Aio,
        disk: Arc<dyn SimulatedDisk>,
    ) -> Result<Arc<Node>, NodeError> {
        let path = Path::new("/dev/null");
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(
            |error| NodeError::Io {
                path: path.to_owned(),
                what: "open",
                error: error.into(),
            },
        )?;
        disk.opened_as(fd.as_raw_fd());
        let file = DiskFile {
            fd: LockedFd::with_locks(fd, path, Locking::Off, ImageAccess::Write)?,
            access: ImageAccess::Write,
            direct: Some(Alignment {
                memory: memory_alignment,
                offset: geometry.logical_block_size,
            }),
            device_block: None,
            id: OpenFileId::allocate(),
            aio,
            unsupported: OpsRefusedByRing::default(),
            aio_max_batch: 0,
            no_flush: false,
            block_mode: PartialBlockMode::for_simulated_disk(geometry.logical_block_size),
            simulated: Some(disk),
        };
        Ok(Node::new(
            "simulated",
            geometry,
            false,
            true,
            Box::new(Arc::new(file)),
        ))
    }
}
