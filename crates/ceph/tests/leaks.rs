//! Nothing is left of images and connections that are closed: no thread, no descriptor, no watcher.

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
use test_support::deadline::{STUCK_AFTER, eventually};

/// Opens of an image, spread over connections.
const CONNECTIONS: usize = 10;
const IMAGES: usize = 20;

/// Names of threads, and targets of descriptors.
fn resources() -> (Vec<String>, Vec<String>) {
    let mut threads: Vec<String> = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .collect();
    let mut fds: Vec<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| {
            Some(
                fs::read_link(fd.unwrap().path())
                    .ok()?
                    .display()
                    .to_string(),
            )
        })
        // That of the list itself.
        .filter(|target| !target.ends_with("/fd"))
        .collect();
    threads.sort();
    fds.sort();
    (threads, fds)
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
    let settled = || {
        // Threads that are joined vanish a moment later.
        let mut last = resources();
        eventually("threads that have ended", || {
            std::thread::yield_now();
            let now = resources();
            let ours = |name: &String| matches!(name.trim(), "ceph" | "ceph-log");
            let same = now == last && !now.0.iter().any(ours);
            last = now;
            same
        });
        last
    };
    let before = settled();
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
    assert_eq!(settled(), before);
    let status = cluster.rbd(["status", "rbd/disk"]);
    assert!(status.contains("Watchers: none"), "{status}");
}
