//! Secrets that are added, queried and removed by QMP, and never shown.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::start;

/// A key as Ceph writes it.
const KEY: &str = "AQAA8VNlBQAAABAAMDEyMzQ1Njc4OWFiY2RlZg==";

/// The program with a monitor that logs everything.
fn start_logging_everything(folder: &Folder, line: &str) -> (Process, Client) {
    let mut command = folder.command(words(&format!("{line} {}", crate::MONITOR)));
    command.env("BLOCKPLANE_LOG", "trace");
    let mut program = Process::spawn(command);
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}

#[test]
fn secret_is_added_queried_and_removed_but_not_shown() {
    let folder = Folder::new();
    write(folder.join("key"), KEY).unwrap();
    let line = "--object secret,id=a,file=key,format=base64 --object iothread,id=i";
    let (program, mut client) = start_logging_everything(&folder, line);
    let add = json!({"qom-type": "secret", "id": "b", "data": KEY, "format": "base64"});
    let mut answers = vec![client.done("object-add", add.clone())];
    assert_eq!(
        client.fails("object-add", add),
        "attempt to add duplicate property 'b' to object (type 'container')"
    );
    let listed = client.done("qom-list", json!({"path": "/objects"}));
    for secret in ["a", "b"] {
        let expected = json!({"name": secret, "type": "child<secret>"});
        assert!(listed.as_array().unwrap().contains(&expected), "{listed}");
        answers.push(client.done("qom-list", json!({"path": secret})));
    }
    let classes = client.done("qom-list-properties", json!({"typename": "secret"}));
    assert_eq!(answers[1], classes);
    let get = |property: &str| json!({"path": "/objects/a", "property": property});
    assert_eq!(client.done("qom-get", get("file")), "key");
    assert_eq!(client.done("qom-get", get("format")), "base64");
    for path in ["/objects/a", "/objects/b"] {
        let data = json!({"path": path, "property": "data"});
        let refused = client.fails("qom-get", data);
        assert_eq!(refused, "Property 'secret.data' not found");
    }
    let set = json!({"path": "/objects/b", "property": "format", "value": "raw"});
    let refused = client.fails("qom-set", set);
    assert_eq!(refused, "Property 'secret.format' is not writable");
    let wrong =
        json!({"qom-type": "secret", "id": "c", "data": format!("{KEY}x"), "format": "base64"});
    let wrong = client.fails("object-add", wrong);
    assert!(
        wrong.contains("'data' cannot be '…': expected base64"),
        "{wrong}"
    );
    client.done("object-del", json!({"id": "b"}));
    let gone = client.fails("object-del", json!({"id": "b"}));
    assert_eq!(gone, "object 'b' not found");
    let output = program.stop();
    for shown in [
        wrong,
        format!("{answers:?}{listed}"),
        output.stderr,
        output.stdout,
    ] {
        assert!(!shown.contains(&KEY[..12]), "{shown}");
    }
}

#[test]
fn secrets_that_cannot_be_read_are_refused() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    let mut fails = |file: &str, content: &[u8]| {
        write(folder.join("file"), content).unwrap();
        let add = json!({"qom-type": "secret", "id": "s", "file": file, "format": "base64"});
        client.fails("object-add", add)
    };
    assert!(fails("absent", b"").contains("secret 's': cannot read absent: No such file"));
    assert!(fails("file", b"").contains("secret 's': file: it is empty"));
    assert!(fails("file", b"x!").contains("it is not base64"));
    assert!(fails("file", &vec![b'x'; 70_000]).contains("longer than 65536 bytes"));
    program.stop();
}

#[test]
fn a_file_that_all_users_can_read_is_reported() {
    let folder = Folder::new();
    let line = "--sandbox strict --object secret,id=s,file=key";
    for (mode, reported) in [(0o640, false), (0o644, true)] {
        write(folder.join("key"), KEY).unwrap();
        set_permissions(folder.join("key"), Permissions::from_mode(mode)).unwrap();
        let (program, _) = start(&folder, line);
        let stderr = program.stop().stderr;
        assert_eq!(
            stderr.contains("all users of this host can read"),
            reported,
            "{stderr}"
        );
    }
}

#[test]
fn nodes_refer_to_secrets_that_are_keys() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "--object iothread,id=i");
    let node =
        json!({"driver": "rbd", "node-name": "n", "pool": "p", "image": "i", "key-secret": "s"});
    let unknown = client.fails("blockdev-add", node.clone());
    assert_eq!(unknown, "No secret with id 's'");
    let add = |data: &str| json!({"qom-type": "secret", "id": "s", "data": data});
    client.done("object-add", add(KEY));
    let encoded = client.fails("blockdev-add", node);
    assert_eq!(
        encoded,
        "secret 's' is a key of Ceph in base64: create it with format=base64"
    );
    // The refused node does not use it.
    client.done("object-del", json!({"id": "s"}));
    program.stop();
}

#[test]
fn a_pipe_without_a_writer_is_refused_and_the_daemon_goes_on() {
    let folder = Folder::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
    let (program, mut client) = start(&folder, "");
    for file in ["pipe", "/dev/zero"] {
        let add = json!({"qom-type": "secret", "id": "a", "file": file});
        let refused = client.fails("object-add", add);
        assert!(refused.contains("regular file"), "{refused}");
    }
    client.done("query-block-exports", json!({}));
    program.stop();
}
