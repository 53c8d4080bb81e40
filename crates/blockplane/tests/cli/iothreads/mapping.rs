//! Tests of the mapping of queues to iothreads: each queue is served by its iothread and by no other.
//!
//! Who serves a request signals its guest, and that is a write(2) which the kernel counts by thread.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use test_support::threads::read_of_each_thread;

use crate::guest::{Guest, IN};
use crate::process::{Folder, Process, words};

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

/// The iothreads that serve these queues, as seen.
fn served_by(process: &Process, guest: &mut Guest, queues: u32) -> Vec<Vec<String>> {
    let seen = (0..queues).map(|queue| {
        let before = writes(process);
        for _ in 0..3 {
            guest.request(queue, IN, 0, 0);
        }
        let after = writes(process);
        let wrote = after.into_iter().filter(|(name, n)| before[name] != *n);
        wrote.map(|(name, _)| name).collect()
    });
    seen.collect()
}

/// Starts a server and asserts by which iothread each queue is served.
fn check(args: impl IntoIterator<Item = OsString>, wanted: &[&str]) {
    let folder = Folder::new();
    let mut server = Process::spawn(folder.command(args));
    server.wait_until_accepting(&folder.join("s"));
    let queues = u32::try_from(wanted.len()).unwrap();
    let mut guest = Guest::connect(&folder.join("s"), queues);
    let wanted: Vec<Vec<String>> = wanted.iter().map(|name| vec![(*name).to_owned()]).collect();
    assert_eq!(served_by(&server, &mut guest, queues), wanted);
    drop(guest);
    server.stop();
}

/// The same for an export of four queues with these options.
fn check_export(mapping: &str, wanted: &[&str]) {
    let mut args = words(
        "--object iothread,id=a --object iothread,id=b --blockdev null-co,node-name=d --export",
    );
    let text = if mapping.starts_with('\'') {
        format!(
            "{{'type':'vhost-user-blk','id':'e','node-name':'d','addr':{{'type':'unix','path':'s'}},\
             'num-queues':4,{mapping}}}"
        )
    } else {
        format!("vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,num-queues=4,{mapping}")
    };
    args.push(text.into());
    check(args, wanted);
}

#[test]
fn one_iothread_serves_all_queues() {
    check_export("iothread=b", &["b", "b", "b", "b"]);
}

#[test]
fn queues_are_distributed_round_robin() {
    let wanted = ["b", "a", "b", "a"];
    check_export("iothread.0=b,iothread.1=a", &wanted);
    check_export("'iothread':['b','a']", &wanted);
    check_export(
        "iothread-vq-mapping.0.iothread=b,iothread-vq-mapping.1.iothread=a",
        &wanted,
    );
    check_export(
        "'iothread-vq-mapping':[{'iothread':'b'},{'iothread':'a'}]",
        &wanted,
    );
}

#[test]
fn queues_follow_the_iothread_vq_mapping() {
    let wanted = ["b", "b", "b", "a"];
    check_export(
        "iothread-vq-mapping.0.iothread=a,iothread-vq-mapping.0.vqs.0=3,iothread-vq-mapping.1.iothread=b,\
         iothread-vq-mapping.1.vqs.0=2,iothread-vq-mapping.1.vqs.1=0,iothread-vq-mapping.1.vqs.2=1",
        &wanted,
    );
    check_export(
        "'iothread-vq-mapping':[{'iothread':'a','vqs':[3]},{'iothread':'b','vqs':[2,0,1]}]",
        &wanted,
    );
}

#[test]
fn serve_distributes_queues_round_robin() {
    check(
        words("serve null-co: --socket s --iothreads 2"),
        &["io0", "io1", "io0", "io1"],
    );
}
