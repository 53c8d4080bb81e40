//! Threads, descriptors, watchers and connections of many images.
//!
//! `BLOCKPLANE_OPENS=1000` opens and closes an image so often instead of 100 times.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Pid;
use test_support::deadline::{eventually, eventually_ok};
use test_support::threads::read_of_each_thread;

use crate::client::Client;
use crate::disk::{SOCKET, remove_export};
use crate::process::Folder;
use crate::request_driver::{OUT, RequestDriver};
use crate::{new_disk, start};

/// Nodes that are opened and closed by default.
const OPENS: u32 = 100;

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
    let Some(disk) = new_disk("reopened") else {
        return;
    };
    let folder = Folder::new();
    // So that there are threads for clusters. It has nothing open.
    let (program, mut client) = start(&folder, &format!("--blockdev rbd,{}", disk.node()));
    client.execute("blockdev-del node-name=d");
    let settled = |most: Option<(usize, usize)>| {
        eventually_ok("nothing is open", || {
            let (now, open) = (used(program.pid()), connections(program.pid()));
            // The first time, threads of a connection may still be ending.
            let is_so = open == 0 && most.is_none_or(|most| now.0 <= most.0 && now.1 <= most.1);
            if is_so { Ok(now) } else { Err((now, open)) }
        })
    };
    let cycle = |client: &mut Client, is_used: bool| {
        if is_used {
            disk.add_to(client);
            let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
            guest.request(0, OUT, 0, 1);
            drop(guest);
            remove_export(client, "d");
        } else {
            client.done("blockdev-add", disk.node_json("n"));
            client.execute("blockdev-del node-name=n");
        }
    };
    cycle(&mut client, true);
    let before = settled(None);
    for number in 0..opens() {
        cycle(&mut client, number % 5 == 0);
    }
    settled(Some(before));
    assert_eq!(disk.watchers(), 0);
    program.stop();
}

/// The default is 32.
#[test]
fn seventy_images_of_at_most_35_per_connection_use_two() {
    let Some(disk) = new_disk("seventy") else {
        return;
    };
    let folder = Folder::new();
    let line = format!("--blockdev rbd,{},images-per-connection=35", disk.node());
    let (program, mut client) = start(&folder, &line);
    for image in 1..70 {
        let mut node = disk.node_json(&format!("n{image}"));
        node["images-per-connection"] = 35.into();
        client.done("blockdev-add", node);
    }
    // A thread gets its name when it runs.
    eventually("two connections", || connections(program.pid()) == 2);
    let status = disk.cluster.rbd(["status", "seventy"]);
    let words = status.split_whitespace();
    let clients: BTreeSet<_> = words.filter(|word| word.starts_with("client.")).collect();
    assert_eq!((disk.watchers(), clients.len()), (70, 2), "{status}");
    program.stop();
    disk.is_closed();
}
