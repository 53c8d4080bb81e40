//! State of a connection for operators: counts of requests, requests in flight, and a client that the cluster has blocklisted.

use std::sync::Arc;

use ceph::{ConnectionState, Connections, Image};
use engine::{Errno, Op};
use telemetry::queue::RequestKind;
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::eventually;

use crate::client::{Client, Turn, image, options};
use crate::log::Log;
use crate::requester::{Requester, pattern};

const MIB: u64 = 1 << 20;

#[test]
fn requests_are_counted_by_kind_and_those_in_flight_at_a_cluster_that_pauses() {
    let options = ClusterOptions {
        store: ObjectStore::MemStore,
        auth: Auth::None,
        manager: false,
        watch_timeout: 5,
    };
    let Some(mut cluster) = Cluster::start_or_report(options) else {
        return;
    };
    cluster.create_image("rbd/counted", 4 * MIB);
    let client = Client::connect(&cluster);
    let image = client.open("counted");
    let status = client.connection().status();
    assert_eq!((status.images(), status.user()), (1, "admin"));
    let mut requester = Requester::new(&image);
    let data = pattern(1, 4096);
    requester.write(0, &data).unwrap();
    requester.write(4096, &data).unwrap();
    requester.read(0, 4096).unwrap();
    // It does not reach the cluster.
    assert_eq!(requester.write(4 * MIB, &data), Err(Errno::IO));
    assert_eq!(status.state(), ConnectionState::Connected);
    cluster.pause_osd();
    for block in 0..3 {
        let data = data.clone().into_boxed_slice();
        requester.start(Op::Write, false, block * 4096, 4096, vec![data]);
    }
    assert_eq!(
        (status.in_flight(), image.request_stats().in_flight()),
        (3, 3)
    );
    eventually("a cluster that is not answering", || {
        matches!(status.state(), ConnectionState::NotAnswering(_))
    });
    cluster.resume_osd();
    requester.finish();
    assert_eq!(
        (status.in_flight(), status.state()),
        (0, ConnectionState::Connected)
    );
    let queues = image.request_stats().queues();
    assert_eq!(queues.len(), 1);
    let count = |kind| {
        let stats = queues[0].of_kind(kind);
        (stats.latency.total(), stats.bytes.get(), stats.failed.get())
    };
    assert_eq!(count(RequestKind::Write), (5, 5 * 4096, 0));
    assert_eq!(count(RequestKind::Read), (1, 4096, 0));
    drop((requester, image));
    // The thread that completed the last request may not have let go of the image yet.
    eventually("an image that is closed", || status.images() == 0);
}

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
    assert!(opened.flush().is_err());
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
