//! Options of a connection and of an image, and the geometry of an opened image.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::Key;

/// Default of the longest time that connecting takes.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of the most images of a connection: beyond, the connection's threads become the limit (Ceph's developers measured 8
/// to 32).
const DEFAULT_IMAGES_PER_CONNECTION: usize = 32;

/// The address of a cluster, and the client's name and key. Clients with equal options share connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterOptions {
    /// The configuration file, `ceph.conf`. `None`: librados searches its usual places, and none needs to exist.
    pub conf: Option<PathBuf>,
    /// The client's name without `client.`, for example `admin`. `None`: librados' default, `admin`.
    pub user: Option<String>,
    /// The client's secret key. `None`: from the keyring that the configuration names.
    pub key: Option<Key>,
    /// Addresses of monitors, `host:port` or with Ceph's prefix `v2:` or `v1:`; an IPv6 address is in brackets. Empty: those
    /// of the configuration.
    pub monitors: Vec<String>,
    /// Accepted ways of authentication. Empty: those of the configuration.
    pub auth: Vec<AuthMode>,
    /// Longest time that connecting takes, 10 s by default, and at least a second for librados' own limits.
    pub connect_timeout: Duration,
    /// Most images that share a connection, 32 by default.
    pub images_per_connection: usize,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            conf: None,
            user: None,
            key: None,
            monitors: Vec::new(),
            auth: Vec::new(),
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            images_per_connection: DEFAULT_IMAGES_PER_CONNECTION,
        }
    }
}

/// A way of authentication (`auth_client_required`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthMode {
    /// With a secret key.
    Cephx,
    /// None.
    None,
}

impl AuthMode {
    /// The name in Ceph's configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AuthMode::Cephx => "cephx",
            AuthMode::None => "none",
        }
    }
}

/// The name of an image, and how it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageOptions {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; `None`: the default one.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// A snapshot, which is read-only.
    pub snapshot: Option<String>,
    /// Only for reading; needs no permission to write in the pool. A resize by another client is not noticed then.
    pub read_only: bool,
}

/// The name as Ceph's tools write it: `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`.
impl fmt::Display for ImageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        if let Some(snapshot) = &self.snapshot {
            write!(f, "@{snapshot}")?;
        }
        Ok(())
    }
}

/// Properties of an image when it was opened. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGeometry {
    /// The image.
    pub size: u64,
    /// An object, a power of two.
    pub object_bytes: u64,
    /// What lies in one object before the next one is used; `object_bytes` unless the image is striped.
    pub stripe_unit: u64,
    /// Number of objects over which stripe units are distributed; 1 unless the image is striped.
    pub stripe_count: u64,
    /// librbd reads from it only while it has the exclusive lock: the image has a journal.
    pub reads_need_lock: bool,
}
