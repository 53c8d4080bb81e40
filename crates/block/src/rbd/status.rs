//! The state of an image for operators: its names, connection, statistics of requests, and writer lock.

use std::sync::Arc;

use ceph::{ConnectionStatus, ImageOptions, RequestStats};

use super::disk::RbdDisk;
use super::writer_lock::WriterLockState;

/// An image's state. It does not keep the image open.
#[derive(Clone)]
pub struct ImageStatus {
    /// Pool, namespace, image and snapshot.
    pub image: ImageOptions,
    /// The connection, with the cluster.
    pub connection: Arc<ConnectionStatus>,
    /// Statistics of its requests to librbd.
    pub requests: Arc<RequestStats>,
    /// The writer lock now.
    pub lock: WriterLockState,
    /// Bytes of an object.
    pub object_bytes: u64,
}

impl RbdDisk {
    /// Its state now. It does not wait.
    pub fn status(&self) -> ImageStatus {
        let image = &self.image;
        ImageStatus {
            image: image.options().clone(),
            connection: image.connection().status().clone(),
            requests: image.request_stats().clone(),
            lock: self.writer_lock.state(),
            object_bytes: image.geometry().object_bytes,
        }
    }
}
