//! Faults of a cluster of its own: an OSD that pauses, placement groups that do not answer.

use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};

use ceph::{ConnectionState, ImageOptions, ImageQueue};
use engine::{Errno, Op, Request};
use telemetry::queue::RequestKind;
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::{STUCK_AFTER, eventually};

use crate::MIB;
use crate::client::{Client, image};
use crate::requester::{Requester, pattern};

/// The quickest to start.
const IN_MEMORY: ClusterOptions = ClusterOptions {
    store: ObjectStore::MemStore,
    auth: Auth::None,
    manager: false,
    watch_timeout: 5,
};

#[test]
fn requests_wait_for_a_cluster_that_does_not_answer() {
    let Some(mut cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    requests_are_counted_by_kind_and_those_in_flight_at_a_cluster_that_pauses(&mut cluster);
    an_image_stays_open_for_requests_whose_queue_is_dropped(&mut cluster);
    an_image_whose_osds_do_not_answer_does_not_stop_others_of_its_connection(&cluster);
}

fn requests_are_counted_by_kind_and_those_in_flight_at_a_cluster_that_pauses(
    cluster: &mut Cluster,
) {
    cluster.create_image("rbd/counted", 4 * MIB);
    let client = Client::connect(cluster);
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
        requester.start(Op::Write, true, block * 4096, 4096, vec![data]);
    }
    assert_eq!(
        (status.in_flight(), image.request_stats().in_flight()),
        (3, 3)
    );
    eventually("a cluster that is not answering", || {
        matches!(status.state(), ConnectionState::NotAnswering(_))
    });
    assert!(!requester.queue().has_completions());
    cluster.resume_osd();
    let completions = requester.finish();
    let last = &completions[completions.len() - 3..];
    assert!(last.iter().all(|done| done.result.is_ok()));
    assert_eq!(requester.read(2 * 4096, 4096).unwrap(), data);
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
    assert_eq!(count(RequestKind::Read), (2, 2 * 4096, 0));
    drop((requester, image));
    // The thread that completed the last request may not have let go of the image yet.
    eventually("an image that is closed", || status.images() == 0);
}

fn an_image_stays_open_for_requests_whose_queue_is_dropped(cluster: &mut Cluster) {
    cluster.create_image("rbd/dropped", 4 * MIB);
    let client = Client::connect(cluster);
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

/// Moves the placement groups of a pool to where no OSD is: they do not answer any more.
fn silence_pool(cluster: &Cluster, pool: &str) {
    for command in [
        "osd crush add-bucket nowhere root".to_owned(),
        "osd crush rule create-replicated nowhere nowhere osd".to_owned(),
        format!("osd pool set {pool} crush_rule nowhere"),
    ] {
        cluster.ceph(command.split(' '));
    }
}

fn an_image_whose_osds_do_not_answer_does_not_stop_others_of_its_connection(cluster: &Cluster) {
    cluster.create_pool("silent");
    cluster.create_image("silent/stopped", 4 * MIB);
    cluster.create_image("rbd/running", 4 * MIB);
    let client = Client::connect(cluster);
    let running = client.open("running");
    let stopped = ImageOptions {
        pool: "silent".to_owned(),
        ..image("stopped")
    };
    let stopped = client.try_open(&stopped).unwrap();
    let mut requesters = [(); 8].map(|()| Requester::new(&stopped));
    requesters[0].write(0, &pattern(1, 4096)).unwrap();
    silence_pool(cluster, "silent");
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
    stopped.spawn_lock(STUCK_AFTER, || true, done);
    running.lock().unwrap();
    drop(client.open("running"));
    assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)));
    let heal = "osd pool set silent crush_rule replicated_rule";
    cluster.ceph(heal.split(' '));
    for requester in &mut requesters {
        assert!(requester.finish().iter().all(|done| done.result.is_ok()));
    }
    answer.recv_timeout(STUCK_AFTER).unwrap().unwrap();
}
