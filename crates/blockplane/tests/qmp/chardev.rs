//! Sockets of a monitor, and shutdown over it.

use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use serde_json::json;
use test_support::sockets::{accept, connect};

use crate::MONITOR;
use crate::client::Client;
use crate::process::{Folder, Process, words};

#[test]
fn quit_shuts_down_cleanly() {
    let folder = Folder::new();
    folder.image("disk", 1 << 20);
    let line = format!(
        "{MONITOR} --blockdev file,node-name=d,filename=disk \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s --pidfile pid"
    );
    let program = folder.start(&line, "s");
    let mut client = Client::connect(&folder.join("qmp"));
    let wrong = client.fails("quit", json!({"x": 1}));
    assert_eq!(wrong, "Parameter 'x' is unexpected");
    assert_eq!(client.done("quit", json!({})), json!({}));
    assert!(client.at_end());
    assert_eq!(program.ended().assert_success(), "");
    assert_eq!(folder.names(), ["disk"]);
}

#[test]
fn monitor_reports_version_commands_and_schema() {
    let folder = Folder::new();
    let program = folder.start(MONITOR, "qmp");
    let mut client = Client::connect(&folder.join("qmp"));
    let version = client.done("query-version", json!({}));
    assert_eq!(
        version["package"],
        concat!("blockplane ", env!("CARGO_PKG_VERSION"))
    );
    let commands = client.done("query-commands", json!({}));
    let schema = client.done("query-qmp-schema", json!({}));
    for command in commands.as_array().unwrap() {
        let described = schema
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["name"] == command["name"] && entry["meta-type"] == "command");
        assert!(described, "{command}");
    }
    assert!(
        commands
            .as_array()
            .unwrap()
            .contains(&json!({"name": "quit"}))
    );
    program.stop();
}

#[test]
fn several_monitors_serve_several_clients_each() {
    let folder = Folder::new();
    let line = format!(
        "{MONITOR} --chardev socket,id=c2,path=other,server=on,wait=off --monitor c2,pretty=on"
    );
    let program = folder.start(&line, "other");
    let mut clients: Vec<Client> = (0..20)
        .map(|_| Client::connect(&folder.join("qmp")))
        .collect();
    for client in &mut clients {
        client.done("query-version", json!({}));
    }
    // Spread over lines.
    let mut stream = connect(&folder.join("other"));
    let mut line = [0; 3];
    std::io::Read::read_exact(&mut stream, &mut line).expect("the greeting");
    assert_eq!(&line, b"{\n ");
    program.stop();
    assert!(clients.iter_mut().all(Client::at_end));
    assert!(folder.names().is_empty());
}

#[test]
fn chardev_waits_for_a_client_by_default() {
    let folder = Folder::new();
    let line = "--chardev socket,id=c,path=qmp,server=on --pidfile pid --monitor c";
    let mut program = Process::spawn(folder.command(words(line)));
    program.wait_until("listens", || folder.has("qmp"));
    // It is not ready without a client; a short wait detects gross errors only.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!folder.has("pid"));
    let mut client = Client::of(program.connection(&folder.join("qmp")));
    program.wait_until("ready", || folder.has("pid"));
    client.done("quit", json!({}));
    program.ended().assert_success();
}

#[test]
fn signal_ends_the_wait_for_a_client() {
    let folder = Folder::new();
    let line = "--chardev socket,id=c,path=qmp,server=on --monitor c";
    let mut program = Process::spawn(folder.command(words(line)));
    program.wait_until("listens", || folder.has("qmp"));
    program.signal(Signal::TERM);
    program.ended().assert_success();
    assert!(!folder.has("qmp"));
}

#[test]
fn client_chardev_connects_to_a_listening_socket() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.join("there")).unwrap();
    let line = "--chardev socket,id=c,path=there --monitor c";
    let program = Process::spawn(folder.command(words(line)));
    let mut client = Client::of(accept(&listener));
    client.done("quit", json!({}));
    program.ended().assert_success();
    assert!(folder.has("there"), "it belongs to who made it");
    drop(listener);
    let ended = folder.run("--chardev socket,id=c,path=there --monitor c");
    ended.assert_fails_naming(&["--chardev", "there", "refused"]);
}

#[test]
fn monitor_listens_on_an_inherited_socket() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.join("qmp")).unwrap();
    let line = "--chardev socket,id=c,fd=5,server=on,wait=off --monitor c";
    let mut command = folder.command_after(r#"exec "$0" "$@" 5<&0 0</dev/null"#, words(line));
    command.stdin(std::os::fd::OwnedFd::from(listener));
    let program = Process::spawn(command);
    Client::connect(&folder.join("qmp")).done("quit", json!({}));
    program.ended().assert_success();
    assert!(folder.has("qmp"), "it belongs to who made it");
}

/// What a chardev is called, where it is, and whether a monitor has it.
fn chardevs(client: &mut Client) -> Vec<(String, String, bool)> {
    let all = client.done("query-chardev", json!({}));
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let describe = |one: &serde_json::Value| {
        let used = one["frontend-open"].as_bool().unwrap();
        (text(&one["label"]), text(&one["filename"]), used)
    };
    all.as_array().unwrap().iter().map(describe).collect()
}

#[test]
fn chardevs_are_added_and_removed_except_in_use() {
    let folder = Folder::new();
    let line = "--chardev socket,id=idle,path=idle,server=on,wait=off --monitor idle";
    let (program, mut client) = crate::start(&folder, line);
    let entry = |id: &str, filename: &str, used| (id.to_owned(), filename.to_owned(), used);
    let monitors = [
        entry("idle", "disconnected:unix:idle,server=on", true),
        entry("c", "unix:qmp,server=on", true),
    ];
    assert_eq!(chardevs(&mut client), monitors);
    let backend = |path: &str, server: bool| {
        let addr = json!({"type": "unix", "data": {"path": path}});
        json!({"type": "socket", "data": {"addr": addr, "server": server}})
    };
    let add = json!({"id": "x", "backend": backend("new", true)});
    assert_eq!(client.done("chardev-add", add), json!({}));
    let there = UnixListener::bind(folder.join("there")).unwrap();
    let add = json!({"id": "y", "backend": backend("there", false)});
    assert_eq!(client.done("chardev-add", add), json!({}));
    let _peer = accept(&there);
    let new = [
        entry("x", "disconnected:unix:new,server=on", false),
        entry("y", "unix:there", false),
    ];
    assert_eq!(chardevs(&mut client)[2..], new);
    // A live socket is not taken over, and what was there stays.
    let live = json!({"id": "x", "backend": backend("idle", true)});
    let refused = client.fails("chardev-change", live);
    assert!(
        refused.contains("chardev 'idle' already listens"),
        "{refused}"
    );
    assert!(folder.has("new"));
    let other = json!({"id": "x", "backend": backend("other", true)});
    client.done("chardev-change", other);
    assert!(folder.has("other") && !folder.has("new"));
    let refused = client.fails("chardev-remove", json!({"id": "idle"}));
    assert_eq!(refused, "Chardev 'idle' is busy");
    for id in ["x", "y"] {
        client.done("chardev-remove", json!({"id": id}));
    }
    assert!(!folder.has("other") && folder.has("idle"));
    assert_eq!(chardevs(&mut client), monitors);
    Client::connect(&folder.join("idle"));
    program.stop();
}

/// Arguments of `chardev-add` for a listening socket.
fn listening(id: &str, path: &str) -> serde_json::Value {
    let addr = json!({"type": "unix", "data": {"path": path}});
    json!({"id": id, "backend": {"type": "socket", "data": {"addr": addr}}})
}

#[test]
fn chardev_add_refuses_what_the_command_line_refuses() {
    let folder = Folder::new();
    let (program, mut client) = crate::start(&folder, "");
    let long = "x".repeat(128);
    for id in ["", "1x", "a b", "a,b", "é", "#c", &long] {
        let refused = client.fails("chardev-add", listening(id, "new"));
        assert!(
            refused.contains("a letter, then letters"),
            "{id}: {refused}"
        );
    }
    for path in ["", &long] {
        let refused = client.fails("chardev-add", listening("x", path));
        assert!(refused.contains("1 to 107 bytes"), "{path}: {refused}");
    }
    let mut with_users = listening("x", "new");
    with_users["backend"]["data"]["users"] = json!("root");
    let refused = client.fails("chardev-add", with_users.clone());
    assert!(refused.contains("numbers of users"), "{refused}");
    // A client has no users to choose from.
    with_users["backend"]["data"]["users"] = json!("0:7");
    with_users["backend"]["data"]["server"] = json!(false);
    let refused = client.fails("chardev-add", with_users.clone());
    assert!(refused.contains("'users' is for servers"), "{refused}");
    assert_eq!(chardevs(&mut client).len(), 1);
    with_users["backend"]["data"]["server"] = json!(true);
    client.done("chardev-add", with_users);
    client.done("chardev-remove", json!({"id": "x"}));
    program.stop();
}

#[test]
fn socket_whose_file_was_deleted_is_not_used_twice() {
    let folder = Folder::new();
    let line = "--blockdev null-co,node-name=d \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s";
    let (program, mut client) = crate::start(&folder, line);
    client.done("chardev-add", listening("x", "there"));
    for path in ["s", "there"] {
        std::fs::remove_file(folder.join(path)).unwrap();
        let refused = client.fails("chardev-add", listening("y", path));
        assert!(refused.contains("already listens"), "{refused}");
    }
    let addr = json!({"type": "unix", "path": "there"});
    let export = json!({"type": "vhost-user-blk", "id": "f", "node-name": "d", "addr": addr});
    let refused = client.fails("block-export-add", export);
    assert!(refused.contains("already listens"), "{refused}");
    client.done("chardev-change", listening("x", "there"));
    assert!(
        folder.has("there"),
        "the new socket, not removed with the old one"
    );
    program.stop();
}
