//! `--pidfile`: there while the program runs, and only one's own.

use std::fs;

use rustix::process::Signal;

use crate::process::Folder;

const DROP_IN: &str = "--blockdev null-co,node-name=d \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s --pidfile pid";

#[test]
fn it_holds_the_process_id_until_the_end() {
    for line in ["serve null-co: --socket s --pidfile pid", DROP_IN] {
        let folder = Folder::new();
        let server = folder.start_until_file(line, "pid");
        let content = fs::read_to_string(folder.join("pid")).unwrap();
        assert_eq!(content, format!("{}\n", server.pid()));
        // It is written when everything is started.
        assert!(folder.has("s"));
        server.stop();
        assert_eq!(folder.names(), [""; 0]);
    }
}

#[test]
fn a_second_instance_is_refused_with_the_reason() {
    let folder = Folder::new();
    let first = folder.start_until_file(DROP_IN, "pid");
    let second = "serve null-co: --socket other --pidfile pid";
    folder
        .run(second)
        .failed_naming(&["--pidfile", "pid", "another process"]);
    assert_eq!(
        folder.names(),
        ["pid", "s"],
        "the second removed its own socket only"
    );
    let content = fs::read_to_string(folder.join("pid")).unwrap();
    assert_eq!(content, format!("{}\n", first.pid()));
    first.stop();
}

#[test]
fn one_left_by_a_killed_server_is_taken_over() {
    let folder = Folder::new();
    // Longer than what is written over it.
    fs::write(folder.join("pid"), "12345678901234567890\n").unwrap();
    let killed = folder.start("serve null-co: --socket s --pidfile pid", "s");
    killed.signal(Signal::KILL);
    killed.ended();
    let mut server = folder.start("serve null-co: --socket s --pidfile pid", "s");
    let expected = format!("{}\n", server.pid());
    server.until("the pidfile is ours", || {
        fs::read_to_string(folder.join("pid")).unwrap() == expected
    });
    server.stop();
}
