//! The state of an image for operators: its names, connection, statistics of requests, and writer lock.

use std::sync::Arc;

use ceph::{ConnectionStatus, ImageOptions, RequestStats};

use super::RbdDisk;

/// The state of an image's writer lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterLockState {
    /// Not used (`locking=off`).
    Off,
    /// Not held: nothing has changed the image since it was opened, or since its last user left.
    Released,
    /// It is being acquired: requests wait for that.
    Waiting,
    /// Held.
    Held,
    /// The image has no such lock, and `locking=auto` goes on without.
    Unsupported,
    /// It was not acquired, and requests that change the image fail.
    Refused {
        /// The other client's address as Ceph writes it; `None`: for another reason, which is in the log.
        owner_address: Option<String>,
    },
}

impl WriterLockState {
    /// Names of all states, as monitors have them.
    pub const NAMES: [&'static str; 6] = [
        "off",
        "released",
        "waiting",
        "held",
        "unsupported",
        "refused",
    ];

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let [off, released, waiting, held, unsupported, refused] = Self::NAMES;
        match self {
            WriterLockState::Off => off,
            WriterLockState::Released => released,
            WriterLockState::Waiting => waiting,
            WriterLockState::Held => held,
            WriterLockState::Unsupported => unsupported,
            WriterLockState::Refused { .. } => refused,
        }
    }
}

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
