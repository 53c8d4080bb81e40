//! An opened image with its writer lock: opening, flushes and resizes.

use std::sync::Arc;

use ceph::{ClusterOptions, Connections, Image, ImageOptions, OnResize};
use engine::Errno;

use super::writer_lock::WriterLock;
use crate::disk_file::lock::Locking;
use crate::error::NodeError;

/// Options for opening an image.
#[derive(Clone)]
pub struct RbdOptions {
    /// The cluster and the user.
    pub cluster: ClusterOptions,
    /// The image.
    pub image: ImageOptions,
    /// Called on a thread of librbd when the image has another size.
    pub on_resize: OnResize,
    /// Whether requests that change the image need its exclusive lock.
    pub locking: Locking,
}

/// An opened image.
pub(crate) struct RbdDisk {
    pub image: Arc<Image>,
    pub writer_lock: Arc<WriterLock>,
}

impl RbdDisk {
    /// Opens an image.
    pub fn open(options: &RbdOptions, read_only: bool) -> Result<Arc<Self>, NodeError> {
        let image_options = ImageOptions {
            read_only,
            ..options.image.clone()
        };
        let open = || {
            let connection = Connections::of_process().get(&options.cluster)?;
            let opened = Image::open(&connection, &image_options, options.on_resize.clone());
            Ok::<_, NodeError>((opened, connection.status().is_blocklisted()))
        };
        let image = match open()? {
            // The client is on the cluster's blocklist; another one is not.
            (Err(_), true) => open()?.0?,
            (opened, _) => opened?,
        };
        let writer_lock = WriterLock::new(image.clone(), options.locking);
        writer_lock.follow_image();
        Ok(Arc::new(RbdDisk { image, writer_lock }))
    }

    /// Whether reads need the lock too.
    pub fn reads_need_lock(&self) -> bool {
        !self.image.is_read_only() && self.image.geometry().reads_need_lock
    }

    /// Makes all completed writes stable, and waits for that. Without the lock there are none since it was released, which
    /// had made them stable. For a client on the cluster's blocklist its failure is none: librbd's cache is off, or writes
    /// through.
    pub fn flush(&self) -> Result<(), Errno> {
        if !self.writer_lock.permits_changes() {
            return Ok(());
        }
        let flushed = self.image.flush();
        if flushed.is_err() && self.image.connection().status().is_blocklisted() {
            // A flush that had to succeed would keep the node as long as the client is there.
            tracing::warn!(
                image = self.image.name(),
                "the image is not flushed, since the cluster refuses this client: completed writes are stable, unless \
                 rbd_cache_policy is set for the image (rbd config image ls)"
            );
            return Ok(());
        }
        flushed
    }

    /// Changes the size, in bytes. It waits for the cluster.
    pub fn resize(&self, size: u64) -> Result<(), Errno> {
        self.writer_lock.run_with_lock(|| self.image.resize(size))
    }
}
