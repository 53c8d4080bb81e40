//! Errors of taking the exclusive lock of an image.

use engine::Errno;

/// Failure to take the exclusive lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another client has it.
    #[error(
        "{image} is locked by another client, {owner_address}: end that client, or find it with `rbd lock ls` and `rbd status`"
    )]
    Held {
        /// The image's name with pool and namespace.
        image: String,
        /// The owner's address as Ceph writes it, for example `192.0.2.1:0/1234`.
        owner_address: String,
        /// It is a process of this host that has not ended. Otherwise the cluster may only not have noticed its end.
        is_alive: bool,
    },
    /// An administrator has locked it (`rbd lock add`). librbd would wait for that lock to go, however long.
    #[error(
        "{image} is locked by hand, as '{id}' by {client}: remove that lock with `rbd lock rm {image} '{id}' {client}`"
    )]
    Manual {
        /// The image's name with pool and namespace.
        image: String,
        /// The lock's id.
        id: String,
        /// The client that has locked it, for example `client.4567`.
        client: String,
    },
    /// The image has no such lock.
    #[error("{image} has no exclusive lock: `rbd feature enable {image} exclusive-lock` adds it")]
    Unsupported {
        /// The image's name with pool and namespace.
        image: String,
    },
    /// The image was opened for reading only.
    #[error("{image} is open for reading only, which takes no lock")]
    ReadOnly {
        /// The image's name with pool and namespace.
        image: String,
    },
    /// Another error.
    #[error("cannot take the exclusive lock of {image}: {errno}")]
    Failed {
        /// The image's name with pool and namespace.
        image: String,
        /// librbd's error.
        errno: Errno,
    },
}
