//! `addr.type=fd`: sockets that another process has bound, such as systemd or a test of QEMU, by number or by the name that a service
//! manager gives them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use test_support::sockets::{connect, read_to_end};

use crate::process::{Folder, Process, words};
use crate::{capacity, num_queues};

const NODE: &str = "--blockdev null-co,node-name=d,size=1M";
const EXPORT: &str = "--export vhost-user-blk,id=e,node-name=d,addr.type=fd,addr.str";

/// The program with a descriptor as numbers 3 and 4, and with `variables` that describe them.
fn with_fd(folder: &Folder, fd: impl Into<OwnedFd>, variables: &str, line: &str) -> Process {
    let script = format!(r#"{variables} exec "$0" "$@" 3<&0 4<&0 0</dev/null"#);
    let mut command = folder.command_after(&script, words(&format!("{NODE} {line}")));
    command.stdin(fd.into());
    Process::spawn(command)
}

/// The same with the folder's socket `s`.
fn activated(folder: &Folder, variables: &str, line: &str) -> Process {
    let listener = UnixListener::bind(folder.join("s")).unwrap();
    with_fd(folder, listener, variables, line)
}

const TWO: &str = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=qmp:vhost";

#[test]
fn front_ends_connect_to_an_inherited_socket_by_its_number_or_name() {
    for (variables, fd) in [("", "3"), (TWO, "3"), (TWO, "vhost")] {
        let folder = Folder::new();
        let listener = UnixListener::bind(folder.join("s")).unwrap();
        // Connects before there is a server, as socket activation allows.
        let early = UnixStream::connect(folder.join("s")).unwrap();
        let line = format!("{EXPORT}={fd}");
        let server = with_fd(&folder, listener, variables, &line);
        drop(early);
        assert_eq!(capacity(&folder, "s"), 1 << 20, "{variables} {fd}");
        assert_eq!(num_queues(&folder, "s"), 1);
        server.stop();
        assert!(folder.has("s"), "it belongs to who made it");
    }
}

#[test]
fn a_monitor_listens_on_a_socket_with_a_name() {
    let folder = Folder::new();
    let line = "--chardev socket,id=c,fd=qmp,server=on --monitor c";
    let mut process = activated(&folder, TWO, line);
    let stream = process.connection(&folder.join("s"));
    let mut greeting = [0; 7];
    (&stream).read_exact(&mut greeting).expect("the greeting");
    assert_eq!(&greeting, b"{\"QMP\":");
    process.stop();
}

#[test]
fn metrics_are_served_on_an_inherited_socket() {
    let folder = Folder::new();
    let server = activated(&folder, "", "--metrics fd:3");
    let mut stream = connect(&folder.join("s"));
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .unwrap();
    let answer = read_to_end("the end of an answer", stream);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\nblockplane_build_info{"), "{answer}");
    server.stop();
    assert!(folder.has("s"), "it belongs to who made it");
    let both = folder.run(&format!("{NODE} --metrics fd:5 {EXPORT}=5"));
    both.assert_fails_naming(&["--export", "metrics already listens on file descriptor 5"]);
}

#[test]
fn inherited_socket_works_with_daemonize() {
    let folder = Folder::new();
    let line = format!("{EXPORT}=3 --daemonize --pidfile pid");
    let daemon = crate::daemonize::Daemon::adopt(&folder, || {
        activated(&folder, "", &line).ended().assert_success();
    });
    assert_eq!(capacity(&folder, "s"), 1 << 20);
    daemon.stop();
}

#[test]
fn descriptor_that_is_no_listening_unix_socket_is_refused() {
    let folder = Folder::new();
    let refused = |fd: OwnedFd, why: &str| {
        let ended = with_fd(&folder, fd, "", &format!("{EXPORT}=3")).ended();
        ended.assert_fails_naming(&["descriptor 3", why]);
    };
    refused(File::open("/dev/null").unwrap().into(), "no socket");
    refused(UnixStream::pair().unwrap().0.into(), "does not listen");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    refused(tcp.into(), "another family");
}

#[test]
fn numbers_and_names_of_no_inherited_socket_are_refused() {
    let others = "LISTEN_PID=1 LISTEN_FDS=2 LISTEN_FDNAMES=qmp:vhost";
    let twins = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a:a";
    let in_use = "vhost --chardev socket,id=c,fd=4,server=on,wait=off";
    let second = format!("5 {}=5", EXPORT.replace("id=e", "id=f"));
    for (variables, fd, words) in [
        ("", "77", &["descriptor 77", "was not passed"][..]),
        ("", "-1", &["--export", "addr.str", "'-1'"]),
        ("", "5x", &["--export", "addr.str", "'5x'"]),
        ("", "99999999999", &["--export", "addr.str"]),
        ("", &second, &["--export (number 2)", "descriptor 5", "'e'"]),
        (TWO, "disk", &["'disk'", "qmp, vhost"]),
        ("", "vhost", &["'vhost'", "FileDescriptorName=vhost"]),
        // Descriptors for another process are ignored.
        (others, "vhost", &["'vhost'", "no named sockets"]),
        (twins, "a", &["several", "'a'", "FileDescriptorName="]),
        ("LISTEN_PID=$$ LISTEN_FDS=x", "a", &["LISTEN_FDS", "'x'"]),
        // A socket with two names has one use.
        (TWO, in_use, &["descriptor 4", "already in use"]),
    ] {
        let process = activated(&Folder::new(), variables, &format!("{EXPORT}={fd}"));
        process.ended().assert_fails_naming(words);
    }
}
