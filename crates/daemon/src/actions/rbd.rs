//! Opening of images of Ceph clusters (driver `rbd`).

use std::sync::Arc;

use block::{Node, NodeError};
use options::{BlockdevOptions, Discard, Driver, RbdAuthMode, RbdOptions};

use crate::disk::locking::to_block_locking;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::secret::Secret;

/// What opening an image needs from the state, so that it can be done on any thread.
#[derive(Clone)]
pub(crate) struct ImageOpener {
    /// The secret of `key-secret`, whose content in base64 is the key of the user.
    secret: Option<Arc<Secret>>,
    /// Called with the name of the node when another client of the cluster has resized the image.
    on_image_resized: Arc<dyn Fn(&str) + Send + Sync>,
}

impl ImageOpener {
    /// Prepares for a node, which may have another driver.
    ///
    /// # Errors
    /// There is no such secret or it is no key, or the sandbox was set up without threads for Ceph.
    pub fn prepare(options: &BlockdevOptions, objects: &DaemonObjects) -> Result<Self, BoxError> {
        let id = options.driver.secret_id();
        let secret = id.map(|id| objects.require_ceph_key(id)).transpose()?;
        if matches!(options.driver, Driver::Rbd(_))
            && sandbox::is_process_confined()
            && !ceph::has_launcher()
        {
            let text = "driver rbd: the sandbox was set up without threads for Ceph clusters; start the daemon with \
                        --sandbox on,rbd=allow";
            return Err(text.into());
        }
        Ok(ImageOpener {
            secret,
            on_image_resized: objects.on_image_resized.clone(),
        })
    }

    /// Opens an image as a node; for reading only if its options allow that and it cannot be opened for writing.
    pub fn open(&self, node: &BlockdevOptions, rbd: &RbdOptions) -> Result<Arc<Node>, NodeError> {
        let (on_resized, name) = (self.on_image_resized.clone(), node.node_name.clone());
        let image = block::RbdOptions {
            cluster: self.cluster_options(rbd),
            image: ceph::ImageOptions {
                pool: rbd.pool.clone(),
                namespace: rbd.namespace.clone(),
                image: rbd.image.clone(),
                snapshot: rbd.snapshot.clone(),
                read_only: false,
            },
            on_resize: Arc::new(move || on_resized(&name)),
            locking: to_block_locking(rbd.locking),
        };
        let settings = &node.settings;
        let unmap = settings.discard == Discard::Unmap;
        let open = |read_only| Node::open_rbd(&node.node_name, read_only, unmap, &image);
        let opened = match open(settings.read_only) {
            Err(error @ NodeError::OpenImage(_))
                if settings.auto_read_only && !settings.read_only =>
            {
                open(true).map_err(|_| error)
            }
            opened => opened,
        };
        // A node that is opened anew keeps its size at first. The image may have another one since librbd last notified it.
        opened.inspect(|_| (image.on_resize)())
    }

    fn cluster_options(&self, rbd: &RbdOptions) -> ceph::ClusterOptions {
        let modes = rbd.auth_client_required.iter().map(|mode| match mode {
            RbdAuthMode::Cephx => ceph::AuthMode::Cephx,
            RbdAuthMode::None => ceph::AuthMode::None,
        });
        let key = self.secret.as_ref().map(|secret| {
            let key = ceph::Key::new(secret.content.to_base64());
            key.unwrap_or_else(|_| unreachable!("base64 of what is not empty"))
        });
        ceph::ClusterOptions {
            conf: rbd.conf.clone(),
            user: rbd.user.clone(),
            key,
            monitors: rbd.server.iter().map(ToString::to_string).collect(),
            auth: modes.collect(),
            images_per_connection: rbd.images_per_connection as usize,
            ..ceph::ClusterOptions::default()
        }
    }
}
