//! Nothing is left of images and connections that are closed: no thread, no descriptor, no watcher. A program of its own, since it
//! counts what its process has.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

use std::fs;
use std::sync::Arc;
use std::sync::mpsc;

use ceph::{Connection, Image, ImageOptions, ImageQueue};
use engine::{Op, Request};
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::{STUCK_AFTER, eventually_ok};

/// Opens of an image, spread over connections.
const CONNECTIONS: usize = 10;
const IMAGES: usize = 20;

/// Names of threads, and targets of descriptors without their numbers.
fn resources() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let threads =
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    let targets = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let targets = targets.map(|target| target.display().to_string());
    // That of the list itself.
    let targets = targets.filter(|target| !target.ends_with("/fd"));
    let without_number = |target: String| target.split('[').next().unwrap_or_default().to_owned();
    threads.chain(targets.map(without_number)).collect()
}

/// What there is besides.
fn resources_besides(before: &[String]) -> Vec<String> {
    let mut left = resources();
    for one in before {
        if let Some(index) = left.iter().position(|other| other == one) {
            left.swap_remove(index);
        }
    }
    left
}

/// Opens the image, sends a request, closes it.
fn use_image(connection: &Arc<Connection>, options: &ImageOptions) {
    let image = Image::open(connection, options, Arc::new(|| ())).unwrap();
    let (sender, woken) = mpsc::channel();
    let mut queue = ImageQueue::new(image, Arc::new(move || sender.send(()).unwrap()));
    let write = Request::without_data(Op::WriteZeroes { unmap: true }, 0, 4096, 7);
    // SAFETY: it has no buffers.
    unsafe { queue.start(&write) }.unwrap();
    woken.recv_timeout(STUCK_AFTER).unwrap();
    let mut completions = Vec::new();
    queue.reap(&mut completions);
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].token, completions[0].result), (7, Ok(())));
}

#[test]
fn two_hundred_images_leave_no_thread_descriptor_or_watcher() {
    let cluster = Cluster::start_or_report(ClusterOptions {
        store: ObjectStore::MemStore,
        auth: Auth::None,
        manager: false,
        watch_timeout: 5,
    });
    let Some(cluster) = cluster else {
        return;
    };
    cluster.create_image("rbd/disk", 8 << 20);
    let options = ceph::ClusterOptions {
        conf: Some(cluster.conf()),
        ..Default::default()
    };
    let image = ImageOptions {
        pool: "rbd".to_owned(),
        namespace: None,
        image: "disk".to_owned(),
        snapshot: None,
        read_only: false,
    };
    let connect = || Connection::open(&options).unwrap();
    // The libraries keep some from the first time on.
    use_image(&connect(), &image);
    assert!(ceph::wait_for_connections(STUCK_AFTER));
    let mut before = resources();
    // The library's own threads end with its connections.
    before.retain(|name| !matches!(name.trim(), "ceph" | "ceph-log"));
    for _ in 0..CONNECTIONS {
        let connection = connect();
        for _ in 0..IMAGES {
            use_image(&connection, &image);
        }
        let watchers = Image::open(&connection, &image, Arc::new(|| ()))
            .unwrap()
            .watchers()
            .unwrap();
        assert_eq!(watchers.len(), 1, "{watchers:?}");
    }
    assert!(ceph::wait_for_connections(STUCK_AFTER));
    // Threads that are joined vanish a moment later.
    eventually_ok("nothing is left", || match resources_besides(&before) {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    });
    let status = cluster.rbd(["status", "rbd/disk"]);
    assert!(status.contains("Watchers: none"), "{status}");
}
