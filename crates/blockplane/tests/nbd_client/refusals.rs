//! Exports that cannot be served: the error says why, and what to do.

use serde_json::json;
use test_support::nbd_server::NbdServer;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::{SOCKET, line, one_connection_server, start, words};

const ONE_CONNECTION: &str = "whose server allows one connection";

/// The start with these options fails with an error that has these parts.
#[track_caller]
fn assert_fails(folder: &Folder, line: &str, parts: &[&str]) {
    let output = folder.run(line);
    assert_eq!(output.code, Some(1), "{output:?}");
    for part in parts {
        assert!(output.stderr.contains(part), "no '{part}': {output:?}");
    }
}

#[test]
fn an_export_that_cannot_be_served_is_named_with_the_reason() {
    let folder = Folder::new();
    let nowhere = format!("serve nbd+unix:///x?socket=/nonexistent/socket --socket {SOCKET}");
    let error =
        "cannot open export 'x' of /nonexistent/socket: cannot connect: No such file or directory";
    assert_fails(&folder, &nowhere, &[error]);
    let Some(server) = NbdServer::nbdkit(&folder, "--readonly memory 1M") else {
        return;
    };
    let socket = server.socket().display();
    let error = format!("export '' of {socket} is read-only; open it with read-only=on");
    assert_fails(&folder, &line(&server, "", ""), &[&error]);
    drop(server);

    let Some(server) = one_connection_server(&folder) else {
        return;
    };
    let error = ["cannot open export 'mine' of", "there is no such export"];
    assert_fails(&folder, &line(&server, ",export=mine", ""), &error);
    let two = line(&server, "", ",num-queues=2,iothread.0=io0,iothread.1=io1");
    let two = format!("--object iothread,id=io0 --object iothread,id=io1 {two}");
    assert_fails(&folder, &two, &[ONE_CONNECTION, "not io0, io1"]);
}

#[test]
fn opening_waits_for_a_server_that_starts_later() {
    let folder = Folder::new();
    let Some(mut server) = NbdServer::nbdkit(&folder, "memory 1M") else {
        return;
    };
    server.kill();
    let options = line(&server, ",open-timeout=60", "");
    let mut program = Process::spawn(folder.command(words(&options)));
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.start();
    program.wait_until_accepting(&folder.join(SOCKET));
    program.stop();
}

/// A job writes to its target from its own iothread, and from those of the exports of the disk that it copies.
#[test]
fn one_connection_is_used_by_jobs_and_exports_of_one_iothread() {
    let folder = Folder::new();
    let Some(server) = one_connection_server(&folder) else {
        return;
    };
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 --object iothread,id=io2 \
         --blockdev nbd,node-name=d,server.type=unix,server.path={} \
         --blockdev null-co,node-name=disk,size=1M --blockdev null-co,node-name=copy,size=1M \
         --export vhost-user-scsi,id=scsi,addr.type=unix,addr.path=scsi,iothread=io2",
        server.socket().display()
    );
    let (program, mut client) = start(&folder, &line);
    let export = |node: &str, iothreads: &[&str]| {
        let id = format!("{node}-{}", iothreads.join("-"));
        let addr = json!({"type": "unix", "path": format!("{id}.sock")});
        json!({"id": id, "type": "vhost-user-blk", "node-name": node, "writable": node != "d", "num-queues": 2,
            "iothread": iothreads, "addr": addr})
    };
    let backup = |device: &str, target: &str| json!({"job-id": "j", "device": device, "target": target, "sync": "none"});
    let end_of_job = |client: &mut Client| {
        client.execute("job-cancel id=j");
        client.wait_for_event("BLOCK_JOB_CANCELLED");
    };
    let refused = |client: &mut Client, command, arguments, iothreads: &str| {
        let said = client.fails(command, arguments);
        assert!(said.contains(ONE_CONNECTION), "{said}");
        assert!(said.contains(&format!("not {iothreads}")), "{said}");
    };
    let refused_backup = |client: &mut Client| {
        refused(client, "blockdev-backup", backup("disk", "d"), "io0, io1");
    };
    let refused_export = |client: &mut Client, export| {
        refused(client, "block-export-add", export, "io0, io1");
    };
    let both = export("disk", &["io0", "io1"]);
    client.done("block-export-add", both.clone());
    refused_backup(&mut client);
    client.done("block-export-del", json!({"id": both["id"]}));
    client.wait_for_event("BLOCK_EXPORT_DELETED");
    client.done("block-export-add", export("disk", &["io0"]));
    client.done("blockdev-backup", backup("disk", "d"));
    refused_export(&mut client, export("disk", &["io1"]));
    let lun = json!({"id": "scsi", "node-name": "disk", "lun": 1});
    refused(&mut client, "scsi-lun-add", lun, "io0, io2");
    end_of_job(&mut client);
    // As the source of a job, it is used on the iothread of the first export.
    client.done("block-export-add", export("d", &["io1"]));
    client.done("blockdev-backup", backup("d", "copy"));
    refused_export(&mut client, export("d", &["io0"]));
    end_of_job(&mut client);
    refused_backup(&mut client);
    program.stop();
}
