//! A client of a cluster, for one test at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ceph::{ClusterOptions, Connection, Image, ImageOptions, OpenError};
use test_support::ceph::Cluster;
use test_support::deadline::STUCK_AFTER;

use crate::MIB;

/// Two objects and a part of a third, which does not end with a sector.
pub const IMAGE_BYTES: u64 = 9 * MIB + 100;

/// A connection. Tests run one after another, and each ends when its connections are closed: while threads of librados run, the
/// end of the process may crash.
pub struct Client {
    /// `None` only at the end.
    connection: Option<Arc<Connection>>,
    _turn: Turn,
}

/// The turn of a test.
pub struct Turn(#[expect(dead_code, reason = "is released")] MutexGuard<'static, ()>);

impl Turn {
    pub fn wait() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        Turn(TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let closed = ceph::wait_for_connections(STUCK_AFTER);
        assert!(closed || std::thread::panicking(), "connections are open");
    }
}

impl Client {
    /// A client of the shared cluster, with new images of 9 MiB for it. `None`, with a report, if there are no programs of Ceph.
    pub fn with_images<const N: usize>(names: [&str; N]) -> Option<(&'static Cluster, Self)> {
        let cluster = Cluster::shared_or_report()?;
        for name in names {
            cluster.create_image(&format!("rbd/{name}"), IMAGE_BYTES);
        }
        Some((cluster, Client::connect(cluster)))
    }

    pub fn connect(cluster: &Cluster) -> Self {
        let turn = Turn::wait();
        let connection = Connection::open(&options(cluster)).unwrap();
        Client {
            connection: Some(connection),
            _turn: turn,
        }
    }

    pub fn connection(&self) -> &Arc<Connection> {
        self.connection.as_ref().unwrap()
    }

    /// Opens an image of the pool `rbd` for writing.
    pub fn open(&self, name: &str) -> Arc<Image> {
        self.try_open(&image(name)).unwrap()
    }

    pub fn try_open(&self, options: &ImageOptions) -> Result<Arc<Image>, OpenError> {
        Image::open(self.connection(), options, Arc::new(|| ()))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Before the turn ends.
        drop(self.connection.take());
    }
}

/// The administrator's connection.
pub fn options(cluster: &Cluster) -> ClusterOptions {
    ClusterOptions {
        conf: Some(cluster.conf()),
        ..Default::default()
    }
}

/// An image of the pool `rbd`, for writing.
pub fn image(name: &str) -> ImageOptions {
    ImageOptions {
        pool: "rbd".to_owned(),
        namespace: None,
        image: name.to_owned(),
        snapshot: None,
        read_only: false,
    }
}
