//! A Ceph cluster for all tests of the process, which ends with it.

use std::path::PathBuf;
use std::sync::LazyLock;

use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};

const OPTIONS: ClusterOptions = ClusterOptions {
    store: ObjectStore::BlueStore,
    auth: Auth::None,
    manager: false,
    watch_timeout: 5,
};

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(OPTIONS));

/// Why there cannot be one.
pub(crate) fn missing() -> Option<String> {
    let program = Cluster::missing_program(OPTIONS)?;
    Some(format!("no Ceph cluster: {program} is not installed"))
}

/// Runs `rbd`, and returns its standard output.
///
/// # Panics
/// When the cluster does not start, or `rbd` fails.
pub(crate) fn rbd(arguments: &[&str]) -> String {
    CLUSTER.rbd(arguments)
}

/// The configuration file of clients.
///
/// # Panics
/// When the cluster does not start.
pub(crate) fn conf() -> PathBuf {
    CLUSTER.conf()
}
