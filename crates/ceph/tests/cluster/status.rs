//! State of a connection for operators: a client that the cluster has blocklisted.

use std::sync::Arc;

use ceph::{ConnectionState, Connections, Image};
use engine::Errno;
use test_support::ceph::Cluster;
use test_support::deadline::eventually;

use crate::MIB;
use crate::client::{Turn, image, options};
use crate::log::Log;
use crate::requester::{Requester, pattern};

/// librbd refuses writes to an image that was open, whether or not the entry is still on the blocklist.
#[test]
fn a_blocklisted_client_is_reported_once_and_not_used_again_after_its_entry_is_removed() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/banned", 4 * MIB);
    let _turn = Turn::wait();
    let log = Log::capture();
    let (connections, options) = (Connections::default(), options(cluster));
    let connection = connections.get(&options).unwrap();
    let opened = Image::open(&connection, &image("banned"), Arc::new(|| ())).unwrap();
    let mut requester = Requester::new(&opened);
    let data = pattern(1, 4096);
    requester.write(0, &data).unwrap();
    let address = opened.watchers().unwrap().remove(0);
    cluster.ceph(["osd", "blocklist", "add", &address]);
    eventually("a refused write", || {
        requester.write(0, &data) == Err(Errno::SHUTDOWN)
    });
    let state = || connection.status().state();
    assert_eq!(state(), ConnectionState::Blocklisted);
    // librbd's watch ends a moment after the OSD has refused the write.
    eventually("a refused flush", || opened.flush().is_err());
    cluster.ceph(["osd", "blocklist", "rm", &address]);
    eventually("a read", || requester.read(0, 4096).is_ok());
    assert_eq!(requester.write(0, &data), Err(Errno::SHUTDOWN));
    requester.read(0, 4096).unwrap();
    assert_eq!(state(), ConnectionState::Blocklisted);
    let another = connections.get(&options).unwrap();
    assert!(!Arc::ptr_eq(&connection, &another));
    let log = log.take_when_it_has("it is on the blocklist");
    assert_eq!(log.matches("it is on the blocklist").count(), 1, "{log}");
}
