//! Tests of state that a live upgrade keeps.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixDatagram;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually};
use test_support::sockets::connect;
use test_support::threads::status_field;
use test_support::upgraded_daemon::Daemon;

use crate::client::Client;
use crate::process::{Folder, STUCK_AFTER};
use crate::request_driver::RequestDriver;

/// Queries all that a monitor says of exports, nodes and iothreads, except what belongs to the process.
fn query_state(client: &mut Client) -> Vec<Value> {
    let mut answers: Vec<Value> = [
        "query-block-exports",
        "query-named-block-nodes",
        "query-chardev",
        "qom-list path=/objects",
        "query-iothreads",
    ]
    .map(|command| client.execute(command))
    .into();
    for iothread in answers[4].as_array_mut().unwrap() {
        let iothread = iothread.as_object_mut().unwrap();
        iothread.remove("thread-id");
        iothread.remove("stats");
    }
    answers
}

#[test]
fn objects_that_were_added_over_a_monitor_survive_two_upgrades() {
    let mut daemon = Daemon::with_image("num-queues=2,serial=abc", "");
    daemon.folder.image("other.img", 1 << 20);
    let mut client = daemon.client();
    client.execute(
        "object-add qom-type=iothread id=added
        qom-set path=/objects/added property=thread-pool-max value=9
        blockdev-add driver=raw node-name=window offset=4096 size=65536 file.driver=file file.node-name=other file.filename=other.img file.cache.direct=false
        blockdev-add driver=null-co node-name=zeroes size=1048576
        block-export-add type=vhost-user-blk id=more node-name=window num-queues=3 addr.type=unix addr.path=more iothread-vq-mapping.0.iothread=added iothread-vq-mapping.0.vqs=[0,2] iothread-vq-mapping.1.iothread=io1 iothread-vq-mapping.1.vqs=[1]
        block_resize node-name=d size=33554432",
    );
    let before = query_state(&mut client);
    drop(client);
    for _ in 0..2 {
        daemon.upgrade();
        assert_eq!(query_state(&mut daemon.client()), before);
        connect(&daemon.folder.join("more"));
    }
    // What came over a monitor can go again.
    let mut client = daemon.client();
    client.execute("block-export-del id=more mode=hard");
    client.event("BLOCK_EXPORT_DELETED", "more");
    assert!(!daemon.folder.has("more"), "its socket is removed");
    client.execute("blockdev-del node-name=window\nobject-del id=added");
    drop(client);
    daemon.stop();
}

/// Nodes that are written inside of another one need no `node-name`; clients may have read the one that was generated.
#[test]
fn generated_node_names_survive_two_upgrades() {
    let folder = Folder::new();
    folder.image("a.img", 1 << 20);
    folder.image("b.img", 1 << 20);
    let line = "--blockdev raw,node-name=a,file.driver=file,file.filename=a.img \
        --blockdev raw,node-name=b,file.driver=file,file.filename=b.img \
        --export vhost-user-blk,id=e,node-name=b,addr.type=unix,addr.path=s";
    let mut daemon = Daemon::start_in(folder, line, &[]);
    let node_names = |client: &mut Client| -> Vec<String> {
        let nodes = client.done("query-named-block-nodes", json!({}));
        let nodes = nodes.as_array().unwrap().iter();
        let names = nodes.map(|node| node["node-name"].as_str().unwrap().to_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let mut client = daemon.client();
    assert_eq!(node_names(&mut client), ["#block0", "#block1", "a", "b"]);
    client.execute("blockdev-del node-name=a");
    for _ in 0..2 {
        daemon.upgrade();
        assert_eq!(node_names(&mut daemon.client()), ["#block1", "b"]);
    }
    let mut client = daemon.client();
    client.execute("blockdev-add driver=raw node-name=a file.driver=file file.filename=a.img");
    assert_eq!(node_names(&mut client), ["#block0", "#block1", "a", "b"]);
    daemon.stop();
}

#[test]
fn sigusr2_upgrades() {
    let daemon = Daemon::with_image("num-queues=1", "");
    for _ in 0..2 {
        let before = daemon.pid();
        let load = daemon.load(1, 1);
        kill_process(before, Signal::USR2).unwrap();
        eventually("another process goes on", || daemon.pid() != before);
        load.ended_well();
    }
    daemon.stop();
}

#[test]
fn upgrade_reports_the_new_process_to_the_service_manager() {
    let folder = Folder::new();
    let socket = folder.join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(STUCK_AFTER)).unwrap();
    let line = "--object iothread,id=io0";
    let mut daemon = Daemon::start_in(folder, line, &[("NOTIFY_SOCKET", &socket)]);
    for _ in 0..2 {
        let pid = daemon.upgrade();
        // And the new one is heard.
        for expected in [format!("MAINPID={pid}"), "STATUS=serving".to_owned()] {
            let deadline = Deadline::default();
            loop {
                deadline.check(&expected);
                let mut buffer = [0; 4096];
                let count = manager.recv(&mut buffer).expect(&expected);
                let said = String::from_utf8_lossy(&buffer[..count]);
                assert!(!said.contains("STOPPING"), "{said}");
                if said.starts_with(&expected) {
                    break;
                }
            }
        }
    }
    daemon.stop();
}

/// Only block_resize tells guests.
#[test]
fn upgrade_keeps_the_size_that_the_guest_knows() {
    let mut daemon = Daemon::with_image("num-queues=1", "");
    let guest = RequestDriver::connect(&daemon.folder.join("s"), 1);
    assert_eq!(guest.capacity(), 16 << 20);
    let image = daemon.folder.join("disk.img");
    let image = File::options().append(true).open(image).unwrap();
    image.set_len(32 << 20).unwrap();
    daemon.upgrade();
    assert_eq!(guest.capacity(), 16 << 20);
    daemon
        .client()
        .execute("block_resize node-name=d size=33554432");
    assert_eq!(guest.capacity(), 32 << 20);
    drop(guest);
    daemon.stop();
}

#[test]
fn an_upgrade_keeps_the_user_that_the_daemon_runs_as() {
    const UID: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        test_support::report::not_run("only root can become another user");
        return;
    }
    let folder = Folder::new();
    folder.image("disk.img", 16 << 20);
    for name in ["disk.img", "."] {
        chown(folder.join(name), Some(UID), None).unwrap();
    }
    let user = "nobody";
    let line = &format!(
        "--user {user} --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
        --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on"
    );
    let mut daemon = Daemon::start_copied_in(folder, line);
    let load = daemon.load(1, 2);
    for _ in 0..3 {
        let pid = daemon.upgrade().as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let uids = status_field(&status, "Uid");
        assert_eq!(uids.split_whitespace().next(), Some("65534"));
        assert_eq!(status_field(&status, "CapPrm"), "0000000000000000");
    }
    load.ended_well();
    daemon.stop();
}

/// The running state is handed over, and not the configuration file.
#[test]
fn metrics_are_served_where_they_were_and_their_socket_is_removed_at_the_end() {
    let folder = Folder::new();
    let config = folder.join("b.toml");
    std::fs::write(&config, "[metrics]\nlisten = \"unix:metrics.sock\"\n").unwrap();
    let mut daemon = Daemon::start_in(folder, "--config b.toml", &[]);
    for edited in ["", "[metrics]\nlisten = \"unix:other.sock\"\n"] {
        std::fs::write(&config, edited).unwrap();
        daemon.upgrade();
        let request = b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        // The old process may have accepted the connection, and end.
        eventually("an answer", || {
            let mut stream = connect(&daemon.folder.join("metrics.sock"));
            let mut answer = String::new();
            let asked = stream.write_all(request);
            let read = asked.and_then(|()| stream.read_to_string(&mut answer));
            read.is_ok() && answer.contains("\nblockplane_build_info{")
        });
        assert!(!daemon.folder.has("other.sock"));
    }
    daemon.stop();
}
