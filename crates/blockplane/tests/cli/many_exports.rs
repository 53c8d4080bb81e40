//! A hundred exports in one process.

use std::fs;

use test_support::vhost_user::queue::Queue;
use test_support::vhost_user::ring::Ring;
use test_support::vhost_user::wire::*;
use virtqueue::RingFeatures;
use virtqueue::testing::TestMemory;

use crate::process::{Folder, Process};
use crate::{capacity, num_queues};

const EXPORTS: u32 = 100;
const QUEUES: u32 = 32;

/// The options for all nodes and exports.
fn arguments() -> Vec<String> {
    let of_export = |i| {
        let size = u64::from(i + 1) << 20;
        let node = format!("null-co,node-name=d{i},size={size}");
        let export = format!(
            "vhost-user-blk,id=e{i},node-name=d{i},addr.type=unix,addr.path=s{i},num-queues={QUEUES},writable=on"
        );
        ["--blockdev".to_owned(), node, "--export".to_owned(), export]
    };
    let pidfile = ["--pidfile".to_owned(), "pid".to_owned()];
    let exports = (0..EXPORTS).flat_map(of_export);
    pidfile.into_iter().chain(exports).collect()
}

/// Each queue has descriptors of its own: far more than the soft limit, which is raised.
#[test]
fn hundred_exports_of_32_queues_start_serve_and_stop() {
    let folder = Folder::new();
    let script = r#"ulimit -Sn 256; exec "$0" "$@""#;
    let mut server = Process::spawn(folder.command_after(script, arguments()));
    server.wait_until("all is started", || folder.has("pid"));
    // All queues are this one, since none is used.
    let memory = TestMemory::new(64 << 10);
    let queue = Queue::new(Ring::new(&memory, 8, RingFeatures::default()));
    let connect = |i: u32| {
        let socket = format!("s{i}");
        assert_eq!(capacity(&folder, &socket), u64::from(i + 1) << 20);
        assert_eq!(num_queues(&folder, &socket), u64::from(QUEUES));
        let wire = Wire::connect(&folder.join(&socket));
        // `MQ`, `REPLY_ACK`; `VHOST_USER_F_PROTOCOL_FEATURES`, `VIRTIO_F_VERSION_1`
        wire.begin_session(1 | 1 << 3).unwrap();
        let features = u64s(&[1 << 30 | 1 << 32]);
        wire.must(SET_FEATURES, &features, &[]).unwrap();
        wire.share_memory(&memory).unwrap();
        for index in 0..QUEUES {
            queue.set_up(&wire, &memory, index, 0).unwrap();
            queue.start(&wire, index).unwrap();
            wire.enable(index, true).unwrap();
        }
        wire
    };
    let wires: Vec<Wire> = (0..EXPORTS).map(connect).collect();
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid()));
    let open = open.unwrap().count();
    let at_least = usize::try_from(2 * EXPORTS * QUEUES).unwrap();
    assert!(open > at_least, "{open} descriptors");
    // No other number is enough for all daemons.
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let mut lines = limits.lines();
    let limit = lines.find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = limit.unwrap().split_whitespace().collect();
    assert_eq!(words[3], words[4], "the soft and the hard limit");
    server.stop().assert_success();
    wires.iter().for_each(Wire::wait_for_hang_up);
    assert_eq!(folder.names(), [""; 0]);
}
