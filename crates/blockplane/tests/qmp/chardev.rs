//! Sockets of a monitor, and shutdown over it.

use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::sockets::{accept, connect};

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::start_with_disk;

#[test]
fn quit_shuts_down_cleanly() {
    let (folder, program, mut client) = start_with_disk(
        "--blockdev file,node-name=d,filename=disk \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s --pidfile pid",
    );
    let version = concat!("blockplane ", env!("CARGO_PKG_VERSION"));
    assert_eq!(client.execute("query-version")["package"], version);
    assert_eq!(client.error_of("quit x=1"), "Parameter 'x' is unexpected");
    assert_eq!(client.execute("quit"), json!({}));
    assert!(client.at_end());
    assert_eq!(program.ended().assert_success(), "");
    assert_eq!(folder.names(), ["disk"]);
}

#[test]
fn chardev_waits_for_a_client_or_a_signal_by_default() {
    let folder = Folder::new();
    let line = "--chardev socket,id=c,path=qmp,server=on --pidfile pid --monitor c";
    for is_signalled in [true, false] {
        let mut program = Process::spawn(folder.command(words(line)));
        program.wait_until("listens", || folder.has("qmp"));
        // It is not ready without a client; a short wait detects gross errors only.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!folder.has("pid"));
        if is_signalled {
            program.signal(Signal::TERM);
        } else {
            let mut client = Client::of(program.connection(&folder.join("qmp")));
            program.wait_until("ready", || folder.has("pid"));
            client.execute("quit");
        }
        program.ended().assert_success();
        assert!(!folder.has("qmp"));
    }
}

#[test]
fn client_chardev_connects_to_a_listening_socket() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.join("there")).unwrap();
    let line = "--chardev socket,id=c,path=there --monitor c";
    let program = Process::spawn(folder.command(words(line)));
    Client::of(accept(&listener)).execute("quit");
    program.ended().assert_success();
    assert!(folder.has("there"), "it belongs to who made it");
    drop(listener);
    let ended = folder.run(line);
    ended.assert_fails_naming(&["--chardev", "there", "refused"]);
}

/// What a chardev is called, where it is, and whether a monitor has it.
fn chardevs(client: &mut Client) -> Vec<Value> {
    let all = client.execute("query-chardev");
    let shown = ["label", "filename", "frontend-open"];
    let all = all.as_array().unwrap().iter();
    all.map(|one| shown.iter().map(|key| one[*key].clone()).collect())
        .collect()
}

/// The back-end of a chardev, up to the path of its socket.
const UNIX: &str = "backend.type=socket backend.data.addr.type=unix backend.data.addr.data.path";

#[test]
fn chardevs_are_added_refused_and_removed_except_in_use() {
    let line = "--chardev socket,id=idle,path=idle,server=on,wait=off --monitor idle,pretty=on";
    let (folder, program, mut client) = start_with_disk(line);
    let monitors = [
        json!(["idle", "disconnected:unix:idle,server=on", true]),
        json!(["c", "unix:qmp,server=on", true]),
    ];
    assert_eq!(chardevs(&mut client), monitors);
    client.execute(&format!("chardev-add id=x {UNIX}=new"));
    let there = UnixListener::bind(folder.join("there")).unwrap();
    client.execute(&format!(
        "chardev-add id=y {UNIX}=there backend.data.server=false"
    ));
    let _peer = accept(&there);
    let new = [
        json!(["x", "disconnected:unix:new,server=on", false]),
        json!(["y", "unix:there", false]),
    ];
    assert_eq!(chardevs(&mut client)[2..], new);
    // A live socket is not taken over, and what was there stays.
    client.assert_errors(&format!(
        "chardev-change id=x {UNIX}=idle => chardev 'idle' already listens
         chardev-remove id=idle => Chardev 'idle' is busy"
    ));
    assert!(folder.has("new"));
    client.execute(&format!("chardev-change id=x {UNIX}=other"));
    assert!(folder.has("other") && !folder.has("new"));
    client.execute(
        "chardev-remove id=x
         chardev-remove id=y",
    );
    assert!(!folder.has("other") && folder.has("idle"));
    // What the command line refuses is refused here.
    let long = "x".repeat(128);
    for id in ["", "1x", "a,b", "é", "#c", &long] {
        let add = format!("chardev-add id={id} {UNIX}=new");
        client.assert_errors(&format!("{add} => a letter, then letters"));
    }
    client.assert_errors(&format!(
        "chardev-add id=x {UNIX}= => 1 to 107 bytes
         chardev-add id=x {UNIX}={long} => 1 to 107 bytes
         chardev-add id=x {UNIX}=new backend.data.users=root => numbers of users
         chardev-add id=x {UNIX}=new backend.data.users=0:7 backend.data.server=false => 'users' is for servers"
    ));
    client.execute(&format!(
        "chardev-add id=x {UNIX}=new backend.data.users=0:7
         chardev-remove id=x"
    ));
    assert_eq!(chardevs(&mut client), monitors);
    // Its answers are spread over lines.
    let mut line = [0; 3];
    let mut stream = connect(&folder.join("idle"));
    std::io::Read::read_exact(&mut stream, &mut line).expect("the greeting");
    assert_eq!(&line, b"{\n ");
    program.stop();
}

#[test]
fn socket_whose_file_was_deleted_is_not_used_twice() {
    let export = "vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s";
    let line = format!("--blockdev null-co,node-name=d --export {export}");
    let (folder, program, mut client) = start_with_disk(&line);
    client.execute(&format!("chardev-add id=x {UNIX}=there"));
    for path in ["s", "there"] {
        std::fs::remove_file(folder.join(path)).unwrap();
    }
    client.assert_errors(&format!(
        "chardev-add id=y {UNIX}=s => already listens
         chardev-add id=y {UNIX}=there => already listens
         block-export-add type=vhost-user-blk id=f node-name=d addr.type=unix addr.path=there => already listens"
    ));
    client.execute(&format!("chardev-change id=x {UNIX}=there"));
    assert!(
        folder.has("there"),
        "the new socket, not removed with the old one"
    );
    program.stop();
}
