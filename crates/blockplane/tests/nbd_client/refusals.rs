//! Exports that cannot be served: the error says why, and what to do.

use crate::process::Folder;
use crate::servers::Server;
use crate::{SOCKET, line, words};

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
