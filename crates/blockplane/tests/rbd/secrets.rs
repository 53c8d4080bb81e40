//! Keys that are given as secrets, and users with no more rights than they need.

use std::fs;

use serde_json::json;
use test_support::ceph::Cluster;

use crate::disk::{SOCKET, add_export, export_of, read, remove_export};
use crate::process::{Folder, ProcessOutput};
use crate::request_driver::{BLOCK, OUT, RequestDriver};
use crate::{new_disk, start_logging};

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
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 1, 5);
    assert_eq!(read(&mut guest, 1), [5; BLOCK]);
}

/// The beginning of a key is not among these texts, nor in what a program has printed.
#[track_caller]
fn assert_hidden(key: &str, output: ProcessOutput, texts: &[String]) {
    for shown in texts.iter().chain([&output.stderr, &output.stdout]) {
        assert!(!shown.contains(&key[..12]), "{shown}");
    }
}

/// At the start, and by a monitor later.
#[test]
fn key_as_a_secret_and_minimal_capabilities_suffice_and_the_key_is_never_logged() {
    let Some(disk) = new_disk("with-secret") else {
        return;
    };
    let key = disk.cluster.create_user("vm", &CAPABILITIES);
    let folder = Folder::new();
    fs::write(folder.join("key"), &key).unwrap();
    let monitor = disk.cluster.monitor_address();
    let line = format!(
        "--object secret,id=k,format=base64,file=key --blockdev {} {}",
        node_with_secret(disk.cluster, "with-secret", "vm"),
        export_of("d", "")
    );
    let (program, mut client) = start_logging(&folder, &line, "trace");
    use_disk(&folder);
    let used = client.error_of("object-del id=k");
    assert!(used.contains("'k'") && used.contains("in use"), "{used}");
    let nodes = client.execute("query-named-block-nodes");
    remove_export(&mut client, "d");
    client.execute("object-del id=k");

    let secret = format!("id=k data={key} format=base64");
    client.execute(&format!("object-add qom-type=secret {secret}"));
    let server = json!({"host": monitor.ip().to_string(), "port": monitor.port().to_string()});
    let node = json!({"driver": "rbd", "node-name": "n", "pool": "rbd", "image": disk.name, "user": "vm",
        "key-secret": "k", "conf": "/dev/null", "auth-client-required": ["cephx"], "server": [server]});
    client.done("blockdev-add", node);
    add_export(&mut client, "n");
    use_disk(&folder);
    assert_hidden(&key, program.stop(), &[nodes.to_string()]);
}

/// In the sandbox that allows no other files.
#[test]
fn serve_reads_the_key_from_a_file_and_shows_it_nowhere() {
    let Some(disk) = new_disk("with-keyfile") else {
        return;
    };
    let key = disk.cluster.create_user("served", &CAPABILITIES);
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let key_file = elsewhere.join("key");
    fs::write(&key_file, format!("{key}\n")).unwrap();
    let monitor = disk.cluster.monitor_address();
    let conf = format!("[global]\nmon_host = v2:{monitor}\n");
    fs::write(folder.join("conf"), conf).unwrap();
    let line = format!(
        "serve rbd:rbd/{}:conf=conf:id=served:keyfile={} --socket {SOCKET} -vv",
        disk.name,
        key_file.display()
    );
    let program = folder.start(&line, SOCKET);
    use_disk(&folder);
    let seen_by_others = ["cmdline", "environ"].map(|file| {
        let content = fs::read(format!("/proc/{}/{file}", program.pid())).unwrap();
        String::from_utf8_lossy(&content).into_owned()
    });
    assert_hidden(&key, program.stop(), &seen_by_others);
}

#[test]
fn wrong_key_is_refused_with_user_and_monitors() {
    let Some(disk) = new_disk("wrong-key") else {
        return;
    };
    disk.cluster.create_user("owner", &CAPABILITIES);
    let wrong = disk.cluster.create_user("stranger", &CAPABILITIES);
    let folder = Folder::new();
    fs::write(folder.join("key"), &wrong).unwrap();
    let node = node_with_secret(disk.cluster, "wrong-key", "owner");
    let line = format!("--object secret,id=k,format=base64,file=key --blockdev {node}");
    let output = folder.run(&line);
    let monitor = disk.cluster.monitor_address().to_string();
    assert_eq!(output.code, Some(1), "{output:?}");
    for word in ["refuses client.owner", &monitor, "check its key"] {
        assert!(output.stderr.contains(word), "no '{word}': {output:?}");
    }
    // librados knows no protocol for this port, and tries both. The older one gets no answer, so that librados would go on for
    // 10 s, and log a refusal each 3 s.
    let refusals = output.stderr.matches("handle_auth_bad_method").count();
    assert!(refusals <= 3, "the start goes on to connect: {output:?}");
    assert_hidden(&wrong, output, &[]);
}
