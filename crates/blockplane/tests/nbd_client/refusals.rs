//! Exports that cannot be served: the error says why, and what to do.

use serde_json::json;

use crate::process::Folder;
use crate::servers::Server;
use crate::{MIB, SOCKET, line, start, words};

/// The error of a start with these options.
#[track_caller]
fn error_of(folder: &Folder, line: &str) -> String {
    let output = crate::Process::spawn(folder.command(words(line))).ended();
    assert_eq!(output.code, Some(1), "{output:?}");
    output.stderr
}

#[test]
fn a_read_only_export_is_named() {
    let folder = Folder::new();
    let Some(server) = Server::nbdkit(&folder, "--readonly memory 1M") else {
        return;
    };
    let error = error_of(&folder, &line(&server, "", ""));
    let expected = format!(
        "export '' of {} is read-only; open it with read-only=on",
        server.socket().display()
    );
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn an_unknown_export_is_named() {
    let folder = Folder::new();
    folder.image("image", crate::MIB);
    let image = folder.join("image");
    let Some(server) = Server::qemu_nbd(&folder, "--export-name other", &image) else {
        return;
    };
    let error = error_of(&folder, &line(&server, ",export=mine", ""));
    assert!(error.contains("cannot open export 'mine' of"), "{error}");
    assert!(error.contains("there is no such export"), "{error}");
}

#[test]
fn a_server_that_does_not_run_is_named() {
    let folder = Folder::new();
    let error = error_of(
        &folder,
        &format!("serve nbd+unix:///x?socket=/nonexistent/socket --socket {SOCKET}"),
    );
    let expected =
        "cannot open export 'x' of /nonexistent/socket: cannot connect: No such file or directory";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn opening_waits_for_a_server_that_starts_later() {
    let folder = Folder::new();
    let Some(mut server) = Server::nbdkit(&folder, "memory 1M") else {
        return;
    };
    server.kill();
    let options = line(&server, ",open-timeout=60", "");
    let program = crate::Process::spawn(folder.command(words(&options)));
    std::thread::sleep(std::time::Duration::from_millis(500));
    server.start();
    let mut program = program;
    program.wait_until_accepting(&folder.join(SOCKET));
    assert_eq!(program.stop().code, Some(0));
}

#[test]
fn one_connection_is_served_by_one_iothread() {
    let folder = Folder::new();
    folder.image("image", crate::MIB);
    let image = folder.join("image");
    let Some(server) = Server::qemu_nbd(&folder, "--shared 1", &image) else {
        return;
    };
    let two = ",num-queues=2,iothread.0=io0,iothread.1=io1";
    let error = error_of(
        &folder,
        &format!(
            "--object iothread,id=io0 --object iothread,id=io1 {}",
            line(&server, "", two)
        ),
    );
    assert!(
        error.contains("whose server allows one connection"),
        "{error}"
    );
    assert!(error.contains("not io0, io1"), "{error}");
}

/// A job writes to its target from its own iothread, and from those of the exports of the disk that it copies.
#[test]
fn one_connection_is_used_by_jobs_and_exports_of_one_iothread() {
    let folder = Folder::new();
    for name in ["image", "disk", "copy"] {
        folder.image(name, MIB);
    }
    let Some(server) = Server::qemu_nbd(&folder, "--shared 1", &folder.join("image")) else {
        return;
    };
    let (program, mut client) = start(
        &folder,
        &format!(
            "--object iothread,id=io0 --object iothread,id=io1 --object iothread,id=io2 \
             --blockdev nbd,node-name=d,server.type=unix,server.path={} \
             --blockdev file,node-name=disk,filename=disk --blockdev file,node-name=copy,filename=copy \
             --export vhost-user-scsi,id=scsi,addr.type=unix,addr.path=scsi,iothread=io2",
            server.socket().display()
        ),
    );
    let export = |node: &str, iothreads: &[&str]| {
        let id = format!("{node}-{}", iothreads.join("-"));
        let addr = json!({"type": "unix", "path": format!("{id}.sock")});
        json!({"id": id, "type": "vhost-user-blk", "node-name": node, "writable": node != "d", "num-queues": 2,
            "iothread": iothreads, "addr": addr})
    };
    let backup = |device: &str, target: &str| json!({"job-id": "j", "device": device, "target": target, "sync": "none"});
    let end_of_job = |client: &mut crate::Client| {
        client.done("job-cancel", json!({"id": "j"}));
        client.wait_for_event("BLOCK_JOB_CANCELLED");
    };
    let refused = |client: &mut crate::Client, command, arguments, iothreads: &str| {
        let said = client.fails(command, arguments);
        assert!(
            said.contains("whose server allows one connection"),
            "{said}"
        );
        assert!(said.contains(&format!("not {iothreads}")), "{said}");
    };
    let both = export("disk", &["io0", "io1"]);
    client.done("block-export-add", both.clone());
    refused(
        &mut client,
        "blockdev-backup",
        backup("disk", "d"),
        "io0, io1",
    );
    client.done("block-export-del", json!({"id": both["id"]}));
    client.wait_for_event("BLOCK_EXPORT_DELETED");
    client.done("block-export-add", export("disk", &["io0"]));
    client.done("blockdev-backup", backup("disk", "d"));
    refused(
        &mut client,
        "block-export-add",
        export("disk", &["io1"]),
        "io0, io1",
    );
    let lun = json!({"id": "scsi", "node-name": "disk", "lun": 1});
    refused(&mut client, "scsi-lun-add", lun, "io0, io2");
    end_of_job(&mut client);
    // As the source of a job, it is used on the iothread of the first export.
    client.done("block-export-add", export("d", &["io1"]));
    client.done("blockdev-backup", backup("d", "copy"));
    refused(
        &mut client,
        "block-export-add",
        export("d", &["io0"]),
        "io0, io1",
    );
    end_of_job(&mut client);
    refused(
        &mut client,
        "blockdev-backup",
        backup("disk", "d"),
        "io0, io1",
    );
    program.stop();
}

#[test]
fn blocks_of_the_server_are_the_smallest_of_the_guest() {
    let folder = Folder::new();
    let filter = "--filter=blocksize-policy memory 1M blocksize-minimum=4096 blocksize-preferred=4096 \
                  blocksize-maximum=1M blocksize-error-policy=error";
    let Some(server) = Server::nbdkit(&folder, filter) else {
        return;
    };
    let error = error_of(&folder, &line(&server, "", ""));
    assert!(error.contains("set logical-block-size=4096"), "{error}");
    let (mut program, _) = crate::start(&folder, &line(&server, "", ",logical-block-size=4096"));
    program.wait_until_accepting(&folder.join(SOCKET));
    assert_eq!(program.stop().code, Some(0));
}
