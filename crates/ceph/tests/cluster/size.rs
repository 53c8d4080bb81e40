//! Sizes: another client's resize is noticed, and ours is made.

use std::sync::Arc;
use std::sync::mpsc;

use ceph::Image;
use engine::Errno;
use test_support::ceph::Cluster;
use test_support::deadline::{STUCK_AFTER, eventually};

use crate::client::{Client, image};
use crate::requester::{Requester, pattern};

const MIB: u64 = 1 << 20;

#[test]
fn a_resize_by_another_client_is_noticed_and_bounds_requests() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/resized", MIB);
    let client = Client::connect(cluster);
    let (sender, resized) = mpsc::channel();
    let on_resize = Arc::new(move || sender.send(()).unwrap());
    let image = Image::open(client.connection(), &image("resized"), on_resize).unwrap();
    let mut requester = Requester::new(&image);
    let data = pattern(1, 4096);
    assert_eq!(requester.write(2 * MIB - 4096, &data), Err(Errno::IO));

    cluster.rbd(["resize", "--size", "2M", "rbd/resized"]);
    resized.recv_timeout(STUCK_AFTER).unwrap();
    assert_eq!((image.known_size(), image.size()), (2 * MIB, Ok(2 * MIB)));
    assert_eq!(requester.write(2 * MIB - 4096, &data), Ok(()));

    cluster.rbd(["resize", "--size", "1M", "--allow-shrink", "rbd/resized"]);
    resized.recv_timeout(STUCK_AFTER).unwrap();
    assert_eq!(image.known_size(), MIB);
    assert_eq!(requester.write(MIB - 2048, &data), Err(Errno::IO));
    // Other changes of the header are not announced.
    cluster.rbd(["snap", "create", "rbd/resized@snapshot"]);
    assert_eq!(image.size(), Ok(MIB));
    assert!(resized.try_recv().is_err());
}

#[test]
fn our_resize_changes_the_size() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_image("rbd/grown", MIB);
    let client = Client::connect(cluster);
    let image = client.open("grown");
    image.resize(3 * MIB).unwrap();
    assert_eq!(image.size(), Ok(3 * MIB));
    eventually("the new size", || image.known_size() == 3 * MIB);
    assert_eq!(image.geometry().size, MIB);
    assert_eq!(image.flush(), Ok(()));
    let info = cluster.rbd(["info", "--format", "json", "rbd/grown"]);
    assert!(info.contains(&format!("\"size\":{}", 3 * MIB)), "{info}");
}
