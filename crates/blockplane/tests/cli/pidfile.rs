//! `--pidfile`: exists while the program runs, and is never another process's file.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use test_support::sockets::{limited, read_to_end};

use crate::process::{Folder, Process};

const SERVE: &str = "serve null-co: --socket s --pidfile pid";
const DROP_IN: &str = "--blockdev null-co,node-name=d \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s --pidfile pid";

#[test]
fn pidfile_holds_the_process_id_until_the_end_and_keeps_a_second_daemon_away() {
    for line in [SERVE, DROP_IN] {
        let folder = Folder::new();
        let server = folder.start_until_file(line, "pid");
        // It is written when everything is started.
        assert!(folder.has("s"));
        let second = folder.run("serve null-co: --socket other --pidfile pid");
        second.assert_fails_naming(&["--pidfile", "pid", "another process"]);
        assert_eq!(
            folder.names(),
            ["pid", "s"],
            "the second removed its own socket only"
        );
        let content = fs::read_to_string(folder.join("pid")).unwrap();
        assert_eq!(content, format!("{}\n", server.pid()));
        server.stop();
        assert_eq!(folder.names(), [""; 0]);
    }
}

#[test]
fn pidfile_of_a_killed_daemon_is_reused() {
    let folder = Folder::new();
    // Longer than what is written over it.
    fs::write(folder.join("pid"), "12345678901234567890\n").unwrap();
    let killed = folder.start(SERVE, "s");
    killed.signal(Signal::KILL);
    killed.ended();
    let mut server = folder.start(SERVE, "s");
    let expected = format!("{}\n", server.pid());
    server.wait_until("the pidfile is ours", || {
        fs::read_to_string(folder.join("pid")).unwrap() == expected
    });
    server.stop();
}

/// A limit of the size of files is as good as a full disk.
#[test]
fn unwritable_pidfile_is_removed() {
    let folder = Folder::new();
    let script = r#"ulimit -f 0; exec "$0" "$@""#;
    let command = folder.command_after(script, SERVE.split_whitespace());
    // Standard error must be none of these files.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let process = Process::spawn_with_stderr(command, OwnedFd::from(theirs));
    let said = read_to_end("the end of the program's output", limited(ours));
    assert_eq!(process.ended().code, Some(1), "{said}");
    assert!(said.contains("--pidfile: cannot write"), "{said}");
    assert!(said.contains("too large"), "{said}");
    assert_eq!(folder.names(), [""; 0]);
}

/// Such as an image or a device, by a slip of the hand.
#[test]
fn file_that_is_no_pidfile_is_kept() {
    let folder = Folder::new();
    for content in ["data of a guest", "12 13\n", &"7".repeat(40)] {
        fs::write(folder.join("pid"), content).unwrap();
        let refused = folder.run(SERVE);
        refused.assert_fails_naming(&["--pidfile", "pid", "not a process ID"]);
        assert_eq!(fs::read_to_string(folder.join("pid")).unwrap(), content);
    }
    let refused = folder.run("serve null-co: --socket s --pidfile /dev/null");
    refused.assert_fails_naming(&["--pidfile", "/dev/null", "not a regular file"]);
    assert!(std::path::Path::new("/dev/null").exists());
}

#[test]
fn pidfile_of_another_daemon_at_the_same_path_is_kept() {
    let folder = Folder::new();
    let server = folder.start_until_file(DROP_IN, "pid");
    fs::remove_file(folder.join("pid")).unwrap();
    fs::write(folder.join("pid"), "1\n").unwrap();
    server.stop();
    assert_eq!(fs::read_to_string(folder.join("pid")).unwrap(), "1\n");
}
