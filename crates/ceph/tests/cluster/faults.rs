//! Faults of a cluster: an OSD that pauses, a pool that is full.

use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};

use ceph::{ImageOptions, ImageQueue};
use engine::{Errno, Op, Request};
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::{STUCK_AFTER, eventually};

use crate::client::{Client, image};
use crate::requester::{Requester, pattern};

const MIB: u64 = 1 << 20;

/// The quickest to start.
const IN_MEMORY: ClusterOptions = ClusterOptions {
    store: ObjectStore::MemStore,
    auth: Auth::None,
    manager: false,
    watch_timeout: 5,
};

#[test]
fn requests_wait_for_an_osd_that_pauses() {
    let Some(mut cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    cluster.create_image("rbd/paused", 4 * MIB);
    let client = Client::connect(&cluster);
    let image = client.open("paused");
    let mut requester = Requester::new(&image);
    let data = pattern(1, 4096);
    requester.write(0, &data).unwrap();
    cluster.pause_osd();
    for block in 1..=8 {
        let data = data.clone().into_boxed_slice();
        requester.start(Op::Write, true, block * 4096, 4096, vec![data]);
    }
    requester.start(Op::Flush, false, 0, 0, Vec::new());
    assert!(!requester.queue().has_completions());
    cluster.resume_osd();
    let completions = requester.finish();
    assert!(
        completions
            .iter()
            .all(|completion| completion.result.is_ok())
    );
    assert_eq!(requester.read(8 * 4096, 4096), Ok(data));
}

#[test]
fn an_image_stays_open_for_requests_whose_queue_is_dropped() {
    let Some(mut cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    cluster.create_image("rbd/dropped", 4 * MIB);
    let client = Client::connect(&cluster);
    let image = client.open("dropped");
    let (sender, woken) = mpsc::channel();
    let mut queue = ImageQueue::new(image, Arc::new(move || sender.send(()).unwrap()));
    cluster.pause_osd();
    for token in 0..8 {
        let zeroes = Op::WriteZeroes { unmap: false };
        let mut request = Request::without_data(zeroes, token * 4096, 4096, token);
        request.fua = token % 2 == 0;
        // SAFETY: it has no buffers.
        unsafe { queue.start(&request) }.unwrap();
    }
    assert_eq!((queue.in_flight(), queue.has_completions()), (8, false));
    drop(queue);
    cluster.resume_osd();
    // The function is dropped with the last request, after which the image is closed; the client's end waits for that.
    while woken.recv_timeout(STUCK_AFTER).is_ok() {}
    assert!(matches!(woken.try_recv(), Err(TryRecvError::Disconnected)));
}

#[test]
fn a_full_pool_is_lack_of_space_until_its_quota_is_lifted() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_pool("small");
    cluster.create_image("small/disk", 64 * MIB);
    cluster.ceph(["osd", "pool", "set-quota", "small", "max_bytes", "4194304"]);
    let client = Client::connect(cluster);
    let mut options = image("disk");
    options.pool = "small".to_owned();
    let disk = client.try_open(&options).unwrap();
    let mut requester = Requester::new(&disk);
    let data = pattern(1, 4 << 20);
    requester.write(0, &data).unwrap();
    // The cluster counts bytes now and then.
    let is_full = || cluster.ceph(["osd", "dump"]).contains("full_quota");
    eventually("a pool that is full", is_full);
    // What needs no more space goes on.
    assert_eq!(requester.write(0, &data), Ok(()));
    assert_eq!(requester.read(0, data.len()).unwrap(), data);
    // The OSD gets the cluster's map a moment later. What was written until then is discarded, so that each write needs space.
    eventually("a write is refused", || {
        let written = requester.write(4 * MIB, &data);
        if written.is_ok() {
            let len = data.len() as u64;
            requester.without_data(Op::Discard, 4 * MIB, len).unwrap();
        }
        written == Err(Errno::NOSPC)
    });
    cluster.ceph(["osd", "pool", "set-quota", "small", "max_bytes", "0"]);
    eventually("space again", || {
        requester.write(60 * MIB, &data) != Err(Errno::NOSPC)
    });
}

/// Moves the placement groups of a pool to where no OSD is: they do not answer any more.
fn silence_pool(cluster: &Cluster, pool: &str) {
    cluster.ceph(["osd", "crush", "add-bucket", "nowhere", "root"]);
    cluster.ceph([
        "osd",
        "crush",
        "rule",
        "create-replicated",
        "nowhere",
        "nowhere",
        "osd",
    ]);
    cluster.ceph(["osd", "pool", "set", pool, "crush_rule", "nowhere"]);
}

#[test]
fn an_image_whose_osds_do_not_answer_does_not_stop_others_of_its_connection() {
    let Some(cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    cluster.create_pool("silent");
    cluster.rbd(["create", "--size", "4M", "silent/stopped"]);
    cluster.create_image("rbd/running", 4 * MIB);
    let client = Client::connect(&cluster);
    let running = client.open("running");
    let stopped = ImageOptions {
        pool: "silent".to_owned(),
        ..image("stopped")
    };
    let stopped = client.try_open(&stopped).unwrap();
    let mut requesters = [(); 8].map(|()| Requester::new(&stopped));
    requesters[0].write(0, &pattern(1, 4096)).unwrap();
    silence_pool(&cluster, "silent");
    // More than librados would have in flight of all images.
    for requester in &mut requesters {
        for number in 0..32 {
            let data = vec![1; 1 << 20].into_boxed_slice();
            requester.start(Op::Write, false, number % 4 * MIB, MIB, vec![data]);
        }
    }
    let data = pattern(2, 4096);
    let mut requester = Requester::new(&running);
    requester.write(0, &data).unwrap();
    assert_eq!(requester.read(0, 4096), Ok(data));
    // Its lock waits, and theirs do not.
    let (locked, answer) = mpsc::channel();
    let done = Box::new(move |result| locked.send(result).unwrap());
    stopped.spawn_lock(STUCK_AFTER, done);
    running.lock().unwrap();
    drop(client.open("running"));
    assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)));
    cluster.ceph([
        "osd",
        "pool",
        "set",
        "silent",
        "crush_rule",
        "replicated_rule",
    ]);
    for requester in &mut requesters {
        assert!(requester.finish().iter().all(|done| done.result.is_ok()));
    }
    answer.recv_timeout(STUCK_AFTER).unwrap().unwrap();
}
