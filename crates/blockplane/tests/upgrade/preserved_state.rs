//! Tests of state that a live upgrade keeps.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixDatagram;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually};
use test_support::sockets::connect;

use crate::client::Client;
use crate::daemon::Daemon;
use crate::guest::Guest;
use crate::process::{Folder, STUCK_AFTER};

/// Queries all that a monitor says of exports, nodes and iothreads, except what belongs to the process.
fn query_state(client: &mut Client) -> Vec<Value> {
    let mut answers: Vec<Value> = [
        "query-block-exports",
        "query-named-block-nodes",
        "query-iothreads",
        "query-chardev",
    ]
    .map(|command| client.done(command, json!({})))
    .into();
    for iothread in answers[2].as_array_mut().unwrap() {
        let iothread = iothread.as_object_mut().unwrap();
        iothread.remove("thread-id");
        iothread.remove("stats");
    }
    for iothread in ["io0", "added"] {
        let path = format!("/objects/{iothread}");
        for property in ["poll-max-ns", "aio-max-batch", "thread-pool-max"] {
            answers.push(client.done("qom-get", json!({"path": path, "property": property})));
        }
    }
    answers
}

#[test]
fn changes_over_a_monitor_survive_two_upgrades() {
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=2,serial=abc", "");
    daemon.folder.image("other.img", 1 << 20);
    let mut client = daemon.client();
    let set = |client: &mut Client, property: &str, value: u64| {
        let path = "/objects/io0";
        client.done(
            "qom-set",
            json!({"path": path, "property": property, "value": value}),
        );
    };
    client.done("object-add", json!({"qom-type": "iothread", "id": "added"}));
    set(&mut client, "aio-max-batch", 7);
    set(&mut client, "poll-max-ns", 12_345);
    set(&mut client, "thread-pool-max", 9);
    let node = json!({
        "driver": "raw", "node-name": "window", "offset": 4096, "size": 65_536,
        "file": {"driver": "file", "node-name": "other", "filename": "other.img", "cache": {"direct": false}},
    });
    client.done("blockdev-add", node);
    client.done(
        "blockdev-add",
        json!({"driver": "null-co", "node-name": "null", "size": 1 << 20}),
    );
    client.done(
        "block-export-add",
        json!({
            "type": "vhost-user-blk", "id": "more", "node-name": "window", "num-queues": 3,
            "addr": {"type": "unix", "path": "more"},
            "iothread-vq-mapping": [{"iothread": "added", "vqs": [0, 2]}, {"iothread": "io1", "vqs": [1]}],
        }),
    );
    client.done("block_resize", json!({"node-name": "d", "size": 32 << 20}));
    let before = query_state(&mut client);
    drop(client);
    for _ in 0..2 {
        daemon.upgrade();
        let after = query_state(&mut daemon.client());
        assert_eq!(after, before);
        // What came over a monitor can go again.
        std::os::unix::net::UnixStream::connect(daemon.folder.join("more")).unwrap();
    }
    let mut client = daemon.client();
    client.done("block-export-del", json!({"id": "more", "mode": "hard"}));
    client.event("BLOCK_EXPORT_DELETED", "more");
    assert!(!daemon.folder.has("more"), "its socket is removed");
    client.done("blockdev-del", json!({"node-name": "window"}));
    client.done("object-del", json!({"id": "added"}));
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
        let mut names: Vec<_> = nodes
            .map(|node| node["node-name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let mut client = daemon.client();
    assert_eq!(node_names(&mut client), ["#block0", "#block1", "a", "b"]);
    client.done("blockdev-del", json!({"node-name": "a"}));
    for _ in 0..2 {
        daemon.upgrade();
        assert_eq!(node_names(&mut daemon.client()), ["#block1", "b"]);
    }
    let mut client = daemon.client();
    let file = json!({"driver": "file", "filename": "a.img"});
    client.done(
        "blockdev-add",
        json!({"driver": "raw", "node-name": "a", "file": file}),
    );
    assert_eq!(node_names(&mut client), ["#block0", "#block1", "a", "b"]);
    daemon.stop();
}

#[test]
fn sigusr2_upgrades_and_images_stay_locked() {
    let daemon = Daemon::with_image(Folder::new(), "num-queues=1", "");
    let locked = || {
        let said = daemon.folder.run("serve disk.img --socket other");
        said.assert_fails_naming(&["disk.img", "lock"]);
    };
    locked();
    for _ in 0..2 {
        let before = daemon.pid();
        let load = daemon.load(1, 1);
        kill_process(before, Signal::USR2).unwrap();
        eventually("another process goes on", || daemon.pid() != before);
        load.ended_well();
        locked();
    }
    daemon.stop();
}

#[test]
fn upgrade_reports_the_new_process_to_the_service_manager() {
    let folder = Folder::new();
    let socket = folder.join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(STUCK_AFTER)).unwrap();
    let mut daemon = Daemon::start_in(
        folder,
        "--object iothread,id=io0",
        &[("NOTIFY_SOCKET", &socket)],
    );
    let next = |what: &str, deadline: Deadline| {
        deadline.check(what);
        let mut buffer = [0; 4096];
        let count = manager.recv(&mut buffer);
        let count = count.unwrap_or_else(|error| panic!("{what}: {error}"));
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    for _ in 0..2 {
        let pid = daemon.upgrade();
        let expected = format!("MAINPID={}", pid.as_raw_nonzero());
        let deadline = Deadline::default();
        loop {
            let said = next(&expected, deadline);
            assert!(!said.contains("STOPPING"), "{said}");
            if said == expected {
                break;
            }
        }
        // And the new one is heard.
        let serving = "STATUS=serving";
        while !next(serving, deadline).contains(serving) {}
    }
    daemon.stop();
}

/// Only block_resize tells guests.
#[test]
fn upgrade_keeps_the_size_that_the_guest_knows() {
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=1", "");
    let guest = Guest::connect(&daemon.folder.join("s"), 1);
    assert_eq!(guest.capacity(), 16 << 20);
    let image = File::options()
        .write(true)
        .open(daemon.folder.join("disk.img"));
    image.unwrap().set_len(32 << 20).unwrap();
    daemon.upgrade();
    assert_eq!(guest.capacity(), 16 << 20);
    let grown = json!({"node-name": "d", "size": 32 << 20});
    daemon.client().done("block_resize", grown);
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
    let name = "nobody";
    let line = format!(
        "--user {name} --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
        --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on"
    );
    let mut daemon = Daemon::start_copied_in(folder, &line);
    let load = daemon.load(1, 2);
    for _ in 0..3 {
        let pid = daemon.upgrade().as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = |name: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!(line("Uid:"), UID.to_string());
        assert_eq!(line("CapPrm:"), format!("{:016x}", 0));
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
            asked
                .and_then(|()| stream.read_to_string(&mut answer))
                .is_ok()
                && answer.contains("\nblockplane_build_info{")
        });
        assert!(!daemon.folder.has("other.sock"));
    }
    daemon.stop();
}
