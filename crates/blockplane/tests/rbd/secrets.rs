//! Keys that are given as secrets, and users with no more rights than they need.

use std::fs;

use serde_json::{Value, json};
use test_support::ceph::Cluster;

use crate::disk::{Disk, SOCKET, export_of};
use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::process::{Folder, Process, words};
use crate::{start, start_logging};

/// What docs/ceph.md gives to the user of a daemon.
const CAPABILITIES: [(&str, &str); 2] = [("mon", "profile rbd"), ("osd", "profile rbd pool=rbd")];

/// Options of a node that names the monitor and the secret, and no file.
fn node_with_secret(cluster: &Cluster, image: &str, user: &str) -> String {
    let monitor = cluster.monitor_address();
    format!(
        "rbd,node-name=d,pool=rbd,image={image},user={user},key-secret=k,conf=/dev/null,\
         auth-client-required.0=cephx,server.0.host={},server.0.port={}",
        monitor.ip(),
        monitor.port()
    )
}

/// Writes a block and reads it.
fn use_disk(folder: &Folder) {
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 1, 5);
    guest.request(0, IN, 1, 0);
    assert_eq!(guest.data(0, 0), [5; BLOCK]);
}

#[test]
fn key_in_a_file_and_minimal_capabilities_suffice_and_the_key_is_never_logged() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    Disk::create(cluster, "with-secret");
    let key = cluster.create_user("vm", &CAPABILITIES);
    let folder = Folder::new();
    fs::write(folder.join("key"), &key).unwrap();
    let node = node_with_secret(cluster, "with-secret", "vm");
    for secret in ["file=key".to_owned(), format!("data={key}")] {
        let line = format!(
            "--object secret,id=k,format=base64,{secret} --blockdev {node} {}",
            export_of("d", "")
        );
        let (program, mut client) = start_logging(&folder, &line, "trace");
        use_disk(&folder);
        let used = client.fails("object-del", json!({"id": "k"}));
        assert!(used.contains("'k'") && used.contains("in use"), "{used}");
        let nodes = client.done("query-named-block-nodes", json!({}));
        client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
        client.event("BLOCK_EXPORT_DELETED", "e");
        client.done("blockdev-del", json!({"node-name": "d"}));
        client.done("object-del", json!({"id": "k"}));
        let output = program.stop();
        for shown in [nodes.to_string(), output.stderr, output.stdout] {
            assert!(!shown.contains(&key[..12]), "{shown}");
        }
    }
}

/// In the sandbox that allows no other files.
#[test]
fn serve_reads_the_key_from_a_file_and_shows_it_nowhere() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "with-keyfile");
    let key = cluster.create_user("served", &CAPABILITIES);
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let key_file = elsewhere.join("key");
    fs::write(&key_file, format!("{key}\n")).unwrap();
    let conf = format!("[global]\nmon_host = v2:{}\n", cluster.monitor_address());
    fs::write(folder.join("conf"), conf).unwrap();
    let mut program = Process::spawn(folder.command(words(&format!(
        "serve rbd:rbd/{}:conf=conf:id=served:keyfile={} --socket {SOCKET} -vv",
        disk.name,
        key_file.display()
    ))));
    drop(program.connection(&folder.join(SOCKET)));
    use_disk(&folder);
    let pid = program.pid().as_raw_nonzero();
    let seen_by_others = ["cmdline", "environ"].map(|file| {
        let content = fs::read(format!("/proc/{pid}/{file}")).unwrap();
        String::from_utf8_lossy(&content).into_owned()
    });
    let output = program.stop();
    for shown in seen_by_others
        .into_iter()
        .chain([output.stderr, output.stdout])
    {
        assert!(!shown.contains(&key[..12]), "{shown}");
    }
}

#[test]
fn wrong_key_is_refused_with_user_and_monitors() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    Disk::create(cluster, "wrong-key");
    cluster.create_user("owner", &CAPABILITIES);
    let wrong = cluster.create_user("stranger", &CAPABILITIES);
    let folder = Folder::new();
    fs::write(folder.join("key"), &wrong).unwrap();
    let node = node_with_secret(cluster, "wrong-key", "owner");
    let line = format!("--object secret,id=k,format=base64,file=key --blockdev {node}");
    let output = folder.run(&line);
    let monitor = cluster.monitor_address().to_string();
    assert_eq!(output.code, Some(1), "{output:?}");
    for word in ["refuses client.owner", &monitor, "check its key"] {
        assert!(output.stderr.contains(word), "no '{word}': {output:?}");
    }
    assert!(!output.stderr.contains(&wrong[..12]), "{output:?}");
    // librados knows no protocol for this port, and tries both. The older one gets no answer, so that librados would go on for
    // 10 s, and log a refusal each 3 s.
    let refusals = output.stderr.matches("handle_auth_bad_method").count();
    assert!(refusals <= 3, "the start goes on to connect: {output:?}");
}

/// A daemon with one image may get others by a monitor, as another user too.
#[test]
fn secrets_and_images_are_added_by_a_monitor() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    Disk::create(cluster, "by-monitor");
    let other = Disk::create(cluster, "at-start");
    let key = cluster.create_user("added", &CAPABILITIES);
    let folder = Folder::new();
    let line = format!("--blockdev rbd,{}", other.node());
    let (program, mut client) = start(&folder, &line);
    let secret = json!({"qom-type": "secret", "id": "k", "data": key, "format": "base64"});
    client.done("object-add", secret);
    let monitor = cluster.monitor_address();
    let node: Value = json!({"driver": "rbd", "node-name": "n", "pool": "rbd", "image": "by-monitor",
        "user": "added", "key-secret": "k", "conf": "/dev/null", "auth-client-required": ["cephx"],
        "server": [{"host": monitor.ip().to_string(), "port": monitor.port().to_string()}]});
    client.done("blockdev-add", node);
    client.done(
        "block-export-add",
        json!({"type": "vhost-user-blk", "id": "e", "node-name": "n", "writable": true,
            "addr": {"type": "unix", "path": SOCKET}}),
    );
    use_disk(&folder);
    program.stop();
}
