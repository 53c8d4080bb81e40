//! Each queue is served by its iothread and by no other. (The notations of the option are compared in `options`.)
//!
//! Who serves a request signals its guest, and that is a write(2) which the kernel counts by thread.

use std::collections::BTreeMap;
use std::fs;
use test_support::threads::read_of_each_thread;

use crate::process::{Folder, Process};
use crate::request_driver::{IN, RequestDriver};

/// Writes so far, by the names of iothreads.
fn writes(process: &Process) -> BTreeMap<String, u64> {
    let threads = read_of_each_thread(process.pid(), "comm").into_iter();
    let counted = threads.filter_map(|thread| {
        let name = thread.text.trim().strip_prefix("IO ")?.to_owned();
        let io = fs::read_to_string(thread.folder.join("io")).unwrap();
        let writes = io.lines().find_map(|line| line.strip_prefix("syscw: "));
        Some((name, writes.unwrap().parse().unwrap()))
    });
    counted.collect()
}

/// The iothreads that serve a queue, as seen.
fn served_by(process: &Process, guest: &mut RequestDriver, queue: u32) -> Vec<String> {
    let before = writes(process);
    for _ in 0..3 {
        guest.request(queue, IN, 0, 0);
    }
    let after = writes(process).into_iter();
    let wrote = after.filter(|(name, count)| before[name] != *count);
    wrote.map(|(name, _)| name).collect()
}

#[test]
fn each_queue_is_served_by_its_iothread() {
    let export = "--object iothread,id=a --object iothread,id=b --blockdev null-co,node-name=d \
        --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,num-queues=4";
    for (options, wanted) in [
        ("iothread=b", ["b", "b", "b", "b"]),
        ("iothread.0=b,iothread.1=a", ["b", "a", "b", "a"]),
        (
            "iothread-vq-mapping.0.iothread=a,iothread-vq-mapping.0.vqs.0=3,iothread-vq-mapping.1.iothread=b,\
             iothread-vq-mapping.1.vqs.0=2,iothread-vq-mapping.1.vqs.1=0,iothread-vq-mapping.1.vqs.2=1",
            ["b", "b", "b", "a"],
        ),
        ("serve", ["io0", "io1", "io0", "io1"]),
    ] {
        let folder = Folder::new();
        let line = match options {
            "serve" => "serve null-co: --socket s --iothreads 2".to_owned(),
            mapping => format!("{export},{mapping}"),
        };
        let server = folder.start(&line, "s");
        let mut guest = RequestDriver::connect(&folder.join("s"), 4);
        for (queue, iothread) in (0..).zip(wanted) {
            let found = served_by(&server, &mut guest, queue);
            assert_eq!(found, [iothread], "queue {queue} of {options}");
        }
        drop(guest);
        server.stop();
    }
}
