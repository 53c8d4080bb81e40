//! `addr.type=fd`: sockets that another process has bound, such as systemd or a test of QEMU.

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use test_support::sockets::{connect, read_to_end};

use crate::front_end::FrontEnd;
use crate::process::{Folder, Process, words};

const NODE: &str = "--blockdev null-co,node-name=d,size=1M";

/// The program with a descriptor as number 5, and no other above 2.
fn with_fd_5(folder: &Folder, fd: impl Into<OwnedFd>, line: &str) -> Process {
    let mut command = folder.command_after(
        r#"exec "$0" "$@" 5<&0 0</dev/null"#,
        words(&format!("{NODE} {line}")),
    );
    command.stdin(fd.into());
    Process::spawn(command)
}

fn export(fd: &str) -> String {
    format!("--export vhost-user-blk,id=e,node-name=d,addr.type=fd,addr.str={fd}")
}

#[test]
fn front_ends_connect_to_an_inherited_socket() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.join("s")).unwrap();
    // Connects before there is a server, as socket activation allows.
    let early = UnixStream::connect(folder.join("s")).unwrap();
    let server = with_fd_5(&folder, listener, &export("5"));
    drop(early);
    let front_end = FrontEnd::connect(&folder.join("s"));
    assert_eq!(front_end.capacity(), 2048);
    drop(front_end);
    assert_eq!(FrontEnd::connect(&folder.join("s")).num_queues(), 1);
    server.stop();
    assert!(folder.has("s"), "it belongs to who made it");
}

#[test]
fn metrics_are_served_on_an_inherited_socket() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.join("s")).unwrap();
    let mut stream = connect(&folder.join("s"));
    let server = with_fd_5(&folder, listener, "--metrics fd:5");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .unwrap();
    let answer = read_to_end("the end of an answer", stream);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\nblockplane_build_info{"), "{answer}");
    server.stop();
    assert!(folder.has("s"), "it belongs to who made it");
    let both = format!("--metrics fd:5 {}", export("5"));
    folder
        .run(&format!("{NODE} {both}"))
        .assert_fails_naming(&["--export", "metrics already listens on file descriptor 5"]);
}

#[test]
fn inherited_socket_works_with_daemonize() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.join("s")).unwrap();
    let line = format!("{} --daemonize --pidfile pid", export("5"));
    let daemon = crate::daemonize::Daemon::adopt(&folder, "pid", || {
        with_fd_5(&folder, listener, &line).ended().assert_success();
    });
    assert_eq!(FrontEnd::connect(&folder.join("s")).capacity(), 2048);
    daemon.stop();
}

#[test]
fn descriptor_that_is_no_listening_unix_socket_is_refused() {
    let folder = Folder::new();
    let refused = |fd: OwnedFd, why: &str| {
        let ended = with_fd_5(&folder, fd, &export("5")).ended();
        ended.assert_fails_naming(&["descriptor 5", why]);
    };
    refused(File::open("/dev/null").unwrap().into(), "no socket");
    refused(UnixStream::pair().unwrap().0.into(), "does not listen");
    refused(
        TcpListener::bind("127.0.0.1:0").unwrap().into(),
        "another family",
    );
}

#[test]
fn numbers_that_are_no_open_descriptor_are_refused() {
    let folder = Folder::new();
    let run = |fd: &str| folder.run(&format!("{NODE} {}", export(fd)));
    run("77").assert_fails_naming(&["descriptor 77", "was not passed"]);
    run("-1").assert_fails_naming(&["--export", "addr.str", "'-1'"]);
    run("5x").assert_fails_naming(&["--export", "addr.str", "'5x'"]);
    run("99999999999").assert_fails_naming(&["--export", "addr.str"]);
    folder
        .run(&format!(
            "{NODE} {} {}",
            export("5"),
            export("5").replace("id=e", "id=f")
        ))
        .assert_fails_naming(&["--export (number 2)", "descriptor 5", "'e'"]);
}
