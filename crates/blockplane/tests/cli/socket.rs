//! Sockets that exist at the start, and sockets that are left behind.

use std::os::unix::net::{UnixListener, UnixStream};

use rustix::process::Signal;

use crate::num_queues;
use crate::process::{Folder, Process};

const SERVE: &str = "serve null-co: --socket s";

#[test]
fn a_socket_left_by_a_killed_server_is_replaced() {
    let folder = Folder::new();
    let killed = folder.start(SERVE, "s");
    killed.signal(Signal::KILL);
    assert_eq!(killed.ended().code, None);
    assert!(folder.has("s"), "the killed process could not remove it");
    folder.start(SERVE, "s").stop();
    assert!(!folder.has("s"));
}

#[test]
fn socket_with_a_listener_is_refused() {
    let folder = Folder::new();
    let first = folder.start(SERVE, "s");
    let is_refused = || {
        folder
            .run(SERVE)
            .assert_fails_naming(&["s: another server"])
    };
    is_refused();
    num_queues(&folder, "s");
    first.stop();
    let _other = UnixListener::bind(folder.join("s")).unwrap();
    is_refused();
    UnixStream::connect(folder.join("s")).unwrap();
}

/// Two names of one path, which is only seen when the second is listened on.
#[test]
fn socket_used_twice_by_one_daemon_is_refused_as_such() {
    let folder = Folder::new();
    let absolute = folder.join("s");
    let ended = folder.run(&format!("{SERVE} --monitor {}", absolute.display()));
    ended.assert_fails_naming(&["s: this daemon listens on this socket already"]);
    assert_eq!(folder.names(), [""; 0]);
}

/// The remedy is the same wherever descriptors run out.
#[test]
fn exhausted_descriptors_are_reported_with_the_limit() {
    let folder = Folder::new();
    folder.image("disk", 1 << 20);
    let line = "--chardev socket,id=c,path=s,server=on,wait=off \
        --blockdev file,node-name=d,filename=disk --blockdev file,node-name=last,filename=absent";
    for limit in 5..20 {
        let script = format!(r#"ulimit -n {limit}; exec "$0" "$@""#);
        let command = folder.command_after(&script, line.split_whitespace());
        let ended = Process::spawn(command).ended();
        let there_were_enough = limit > 5 && ended.stderr.contains("absent");
        if !there_were_enough {
            ended.assert_fails_naming(&["Too many open files", "raise `ulimit -n`"]);
        }
    }
}

#[test]
fn file_that_is_no_socket_is_never_replaced() {
    let folder = Folder::new();
    std::fs::write(folder.join("s"), "data").unwrap();
    folder.run(SERVE).assert_fails_naming(&["s", "no socket"]);
    assert_eq!(std::fs::read(folder.join("s")).unwrap(), b"data");
}

/// While it runs, another process may replace its socket.
#[test]
fn socket_of_another_process_is_not_removed() {
    let folder = Folder::new();
    let server = folder.start(SERVE, "s");
    std::fs::remove_file(folder.join("s")).unwrap();
    let _other = UnixListener::bind(folder.join("s")).unwrap();
    server.stop();
    UnixStream::connect(folder.join("s")).unwrap();
}

#[test]
fn too_long_socket_path_is_refused() {
    let folder = Folder::new();
    let long = folder.run(&format!("serve null-co: --socket {}", "x".repeat(108)));
    long.assert_fails_naming(&["--socket", "107"]);
    let longest = "x".repeat(107);
    // Relative to the folder, so that the test itself need not name it in full.
    let server = folder.command(["serve", "null-co:", "--socket", &longest]);
    let mut server = Process::spawn(server);
    server.wait_until("listens", || folder.has(&longest));
    server.stop();
}
