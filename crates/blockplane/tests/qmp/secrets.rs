//! Secrets that are added, queried and removed by QMP, and never shown.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::json;

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::{MONITOR, start, start_with_disk};

/// A key as Ceph writes it.
const KEY: &str = "AQAA8VNlBQAAABAAMDEyMzQ1Njc4OWFiY2RlZg==";

#[test]
fn secret_is_added_queried_and_removed_but_not_shown() {
    let folder = Folder::new();
    write(folder.join("key"), KEY).unwrap();
    let line = "--object secret,id=a,file=key,format=base64 --object iothread,id=i";
    let mut command = folder.command(words(&format!("{line} {}", MONITOR)));
    // Everything is logged.
    command.env("BLOCKPLANE_LOG", "trace");
    let mut program = Process::spawn(command);
    let mut client = Client::of(program.connection(&folder.join("qmp")));

    let add = format!("object-add qom-type=secret id=b format=base64 data={KEY}");
    client.execute(&add);
    let listed = client.execute("qom-list path=/objects");
    let properties = client.execute("qom-list-properties typename=secret");
    for secret in ["a", "b"] {
        let expected = json!({"name": secret, "type": "child<secret>"});
        assert!(listed.as_array().unwrap().contains(&expected), "{listed}");
        let of_secret = client.execute(&format!("qom-list path={secret}"));
        assert_eq!(of_secret, properties);
    }
    let file = client.execute("qom-get path=/objects/a property=file");
    let format = client.execute("qom-get path=/objects/a property=format");
    assert_eq!([file, format], ["key", "base64"]);
    client.assert_errors(&format!(
        "{add} => attempt to add duplicate property 'b' to object (type 'container')
         qom-get path=/objects/a property=data => Property 'secret.data' not found
         qom-get path=/objects/b property=data => Property 'secret.data' not found
         qom-set path=/objects/b property=format value=raw => Property 'secret.format' is not writable"
    ));
    let wrong = format!("object-add qom-type=secret id=c format=base64 data={KEY}x");
    let wrong = client.error_of(&wrong);
    assert!(
        wrong.contains("'data' cannot be '…': expected base64"),
        "{wrong}"
    );
    client.execute("object-del id=b");
    assert_eq!(client.error_of("object-del id=b"), "object 'b' not found");
    let output = program.stop();
    for shown in [
        wrong,
        format!("{properties}{listed}"),
        output.stderr,
        output.stdout,
    ] {
        assert!(!shown.contains(&KEY[..12]), "{shown}");
    }
}

#[test]
fn unreadable_secrets_and_unsuitable_keys_are_refused() {
    let (folder, program, mut client) = start_with_disk("");
    mkfifoat(CWD, folder.join("pipe"), Mode::RWXU).unwrap();
    write(folder.join("empty"), b"").unwrap();
    write(folder.join("text"), b"x!").unwrap();
    write(folder.join("long"), vec![b'x'; 70_000]).unwrap();
    // There is no writer of the pipe, and the daemon goes on.
    let add = "object-add qom-type=secret id=s format=base64";
    client.assert_errors(&format!(
        "{add} file=absent => secret 's': cannot read absent: No such file
         {add} file=empty => secret 's': empty: it is empty
         {add} file=text => it is not base64
         {add} file=long => longer than 65536 bytes
         {add} file=pipe => regular file
         {add} file=/dev/zero => regular file"
    ));
    let node = "blockdev-add driver=rbd node-name=n pool=p image=i key-secret=s";
    assert_eq!(client.error_of(node), "No secret with id 's'");
    client.execute(&format!("object-add qom-type=secret id=s data={KEY}"));
    assert_eq!(
        client.error_of(node),
        "secret 's' is a key of Ceph in base64: create it with format=base64"
    );
    // The refused node does not use it.
    client.execute("object-del id=s");
    program.stop();
}

#[test]
fn a_file_that_all_users_can_read_is_reported() {
    let folder = Folder::new();
    write(folder.join("key"), KEY).unwrap();
    for (mode, reported) in [(0o640, false), (0o644, true)] {
        set_permissions(folder.join("key"), Permissions::from_mode(mode)).unwrap();
        let (program, _) = start(&folder, "--sandbox strict --object secret,id=s,file=key");
        let stderr = program.stop().stderr;
        let found = stderr.contains("all users of this host can read");
        assert_eq!(found, reported, "{stderr}");
    }
}
