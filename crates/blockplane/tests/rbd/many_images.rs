//! Threads, descriptors, watchers and connections of many images.
//!
//! `BLOCKPLANE_OPENS=1000` opens and closes an image so often instead of 200 times.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Pid;
use serde_json::json;
use test_support::ceph::Cluster;
use test_support::deadline::{eventually, eventually_ok};
use test_support::threads::read_of_each_thread;

use crate::disk::{Disk, OBJECT};
use crate::process::Folder;
use crate::start;

/// Nodes that are opened and closed by default.
const OPENS: u32 = 200;

fn opens() -> u32 {
    let value = std::env::var("BLOCKPLANE_OPENS").ok();
    value.map_or(OPENS, |opens| opens.parse().expect("a number"))
}

/// Threads and descriptors of a process.
fn used(pid: Pid) -> (usize, usize) {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    (read_of_each_thread(pid, "comm").len(), fds.count())
}

/// Threads that read the log of a connection: one for each.
fn connections(pid: Pid) -> usize {
    let names = read_of_each_thread(pid, "comm");
    names
        .iter()
        .filter(|name| name.text.trim_end() == "ceph-log")
        .count()
}

#[test]
fn nodes_that_are_removed_leave_nothing() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "reopened");
    let folder = Folder::new();
    // So that there are threads for clusters. It has nothing open.
    let (program, mut client) = start(&folder, &format!("--blockdev rbd,{}", disk.node()));
    client.done("blockdev-del", json!({"node-name": "d"}));
    let cycle = |client: &mut crate::Client| {
        client.done("blockdev-add", disk.node_json("n"));
        client.done("blockdev-del", json!({"node-name": "n"}));
    };
    let settled = |most: Option<(usize, usize)>| {
        eventually_ok("nothing is open", || {
            let (now, open) = (used(program.pid()), connections(program.pid()));
            // The first time, threads of a connection may still be ending.
            let is_so = open == 0 && most.is_none_or(|most| now.0 <= most.0 && now.1 <= most.1);
            if is_so { Ok(now) } else { Err((now, open)) }
        })
    };
    cycle(&mut client);
    let before = settled(None);
    for _ in 0..opens() {
        cycle(&mut client);
    }
    settled(Some(before));
    assert_eq!(disk.watchers(), 0);
    program.stop();
}

#[test]
fn seventy_images_use_three_connections() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "seventy");
    let folder = Folder::new();
    let (program, mut client) = start(&folder, &format!("--blockdev rbd,{}", disk.node()));
    for image in 1..70 {
        client.done("blockdev-add", disk.node_json(&format!("n{image}")));
    }
    // A thread gets its name when it runs.
    eventually("three connections", || connections(program.pid()) == 3);
    let status = cluster.rbd(["status", "seventy"]);
    let clients: BTreeSet<_> = status
        .split_whitespace()
        .filter(|word| word.starts_with("client."))
        .collect();
    assert_eq!((disk.watchers(), clients.len()), (70, 3), "{status}");
    program.stop();
    disk.is_closed();
    assert_eq!(disk.content().len() as u64 % OBJECT, 0);
}
