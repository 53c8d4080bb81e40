//! The server and its exports are started, changed and removed over QMP while clients are connected.

use nbd::wire::{NbdErrno, command, option};
use serde_json::{Value, json};
use test_support::loop_device::LoopDevice;
use test_support::stopped_thread::StoppedThread;

use crate::process::{Folder, Process, STUCK_AFTER, words};
use crate::raw_client::RawClient;
use crate::{MIB, MONITOR, SERVER, disk_line, remove_export, serve, start};

const DISK: &str = "--blockdev null-co,node-name=d,size=1M,read-zeroes=on";

fn export(id: &str) -> Value {
    json!({"type": "nbd", "id": id, "node-name": "d"})
}

#[test]
fn server_and_exports_are_started_and_stopped_as_in_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, DISK);
    let not_running = "NBD server not running";
    assert_eq!(client.fails("block-export-add", export("e")), not_running);
    assert_eq!(client.error_of("nbd-server-stop"), not_running);
    let server = json!({"addr": {"type": "unix", "data": {"path": "nbd"}}});
    client.done("nbd-server-start", server.clone());
    let running = client.fails("nbd-server-start", server.clone());
    assert_eq!(running, "NBD server already running");

    client.done("block-export-add", export("e"));
    let same_name = client.fails("block-export-add", export("f"));
    assert_eq!(same_name, "NBD server already has export named 'd'");
    let exports = client.execute("query-block-exports");
    let shown = json!({"node-name": "d", "shutting-down": false, "type": "nbd", "id": "e"});
    assert_eq!(exports, json!([shown]));
    let old = json!({"device": "d", "name": "old"});
    client.done("nbd-server-add", old);
    client.execute("nbd-server-remove name=old");
    client.event("BLOCK_EXPORT_DELETED", "old");
    let unknown = client.error_of("nbd-server-remove name=old");
    assert_eq!(unknown, "Export 'old' is not found");

    let mut connected = RawClient::enter(&folder, "d");
    client.execute("nbd-server-stop");
    client.event("BLOCK_EXPORT_DELETED", "e");
    assert!(connected.is_closed_within(STUCK_AFTER));
    assert!(!folder.has("nbd"));
    client.done("nbd-server-start", server);
    client.done("block-export-add", export("e"));
    RawClient::enter(&folder, "d");
    client.execute("nbd-server-stop");
    // Plaintext beyond loopback has to be allowed.
    let inet = |host: &str| json!({"addr": {"type": "inet", "data": {"host": host, "port": "0"}}});
    let mut server = inet("0.0.0.0");
    let refused = client.fails("nbd-server-start", server.clone());
    assert!(refused.contains("allow-plaintext"), "{refused}");
    server["allow-plaintext"] = true.into();
    for server in [server, inet("localhost")] {
        client.done("nbd-server-start", server);
        client.execute("nbd-server-stop");
    }
    program.stop();
}

/// With direct I/O the NBD export would have had clients write whole blocks of 4096 bytes, which excludes smaller ones.
#[test]
fn export_that_is_refused_leaves_the_blocks_of_its_node_to_others() {
    let Some(disk) = LoopDevice::new(MIB, 4096) else {
        return;
    };
    let folder = Folder::new();
    let line = format!("{DISK} {SERVER} --export nbd,id=e,node-name=d,name=n");
    let (program, mut client) = start(&folder, &line);
    let node = json!({"driver": "host_device", "node-name": "l", "filename": disk.path});
    client.done("blockdev-add", node);
    let same_name =
        json!({"type": "nbd", "id": "f", "node-name": "l", "name": "n", "writable": true});
    let refused = client.fails("block-export-add", same_name);
    assert_eq!(refused, "NBD server already has export named 'n'");
    let small_blocks = json!({
        "type": "vhost-user-blk", "id": "v", "node-name": "l", "writable": true,
        "logical-block-size": 512, "addr": {"type": "unix", "path": "v"},
    });
    client.done("block-export-add", small_blocks);
    program.stop();
}

#[test]
fn export_del_safe_refuses_connected_clients_and_hard_disconnects_them() {
    let (folder, program, mut client, mut connected) = serve(MIB, "");
    client.event("BLOCK_EXPORT_CONNECTED", "e");
    let used = client.error_of("block-export-del id=e");
    assert!(used.starts_with("export 'e' still in use"), "{used}");
    assert_eq!(connected.result_of(command::FLUSH, 0, (0, 0)), 0);
    remove_export(&mut client, "e");
    assert!(connected.is_closed_within(STUCK_AFTER));
    let gone = RawClient::try_enter(&folder, "d").err().unwrap();
    assert_eq!(gone, "there is no export of this name");
    client.execute("blockdev-del node-name=d");
    program.stop();
}

/// A network client must not make the monitors' clients fall behind, which are disconnected then.
#[test]
fn visits_of_clients_are_reported_at_a_limited_rate_and_the_last_one_always() {
    const VISITS: usize = 100;
    let (folder, program, mut client, mut connected) = serve(MIB, "");
    for _ in 0..VISITS {
        connected.hang_up();
        connected = RawClient::enter(&folder, "d");
    }
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    let mut names = Vec::new();
    while names
        .last()
        .is_none_or(|name| name != "BLOCK_EXPORT_DELETED")
    {
        let event = client.wait_for_event_of(&[
            "BLOCK_EXPORT_CONNECTED",
            "BLOCK_EXPORT_DISCONNECTED",
            "BLOCK_EXPORT_DELETED",
        ]);
        names.push(event["event"].as_str().unwrap().to_owned());
    }
    assert!(names.len() < VISITS, "{} events", names.len());
    assert_eq!(names[names.len() - 2], "BLOCK_EXPORT_DISCONNECTED");
    program.stop();
}

/// The iothread has not seen yet that the client is gone.
#[test]
fn export_whose_client_has_disconnected_is_not_in_use() {
    let (_folder, program, mut client, connected) = serve(MIB, ",iothread=a");
    client.event("BLOCK_EXPORT_CONNECTED", "e");
    let iothread = StoppedThread::of_name(program.pid(), "IO a");
    connected.hang_up();
    client.execute("block-export-del id=e");
    let shown = client.execute("query-block-exports")[0].take();
    assert_eq!(shown["shutting-down"], true);
    drop(iothread);
    client.event("BLOCK_EXPORT_DELETED", "e");
    program.stop();
}

#[test]
fn export_that_is_removed_is_gone_when_the_command_is_answered() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, mut client) = start(&folder, &disk_line(""));
    for mode in ["safe", "hard"] {
        for _ in 0..20 {
            let connected = RawClient::enter(&folder, "d");
            client.event("BLOCK_EXPORT_CONNECTED", "e");
            match mode {
                "safe" => connected.hang_up(),
                _ => std::mem::forget(connected),
            }
            client.done("nbd-server-remove", json!({"name": "e", "mode": mode}));
            assert_eq!(client.execute("query-block-exports"), json!([]));
            let again = client.error_of("nbd-server-remove name=e");
            assert_eq!(again, "Export 'e' is not found");
            client.execute("block-export-add type=nbd id=e node-name=d");
        }
    }
    client.execute("nbd-server-stop");
    assert_eq!(client.execute("query-block-exports"), json!([]));
    program.stop();
}

#[test]
fn requests_are_counted_as_those_of_other_exports() {
    let (_folder, program, mut client, mut connected) = serve(MIB, "");
    (0..3).for_each(|_| connected.write(0, 512, 1));
    assert_eq!(connected.result_of(command::FLUSH, 0, (0, 0)), 0);
    assert_eq!(connected.result_of(command::TRIM, 0, (0, 4096)), 0);
    connected.read(0, 4096);
    let stats = client.execute("query-blockstats");
    let stats = &stats[0]["stats"];
    for (name, expected) in [
        ("wr_operations", 3),
        ("wr_bytes", 1536),
        ("rd_operations", 1),
        ("rd_bytes", 4096),
        ("flush_operations", 1),
        ("unmap_operations", 1),
    ] {
        assert_eq!(stats[name], expected, "{name}");
    }
    program.stop();
}

#[test]
fn a_resized_disk_has_its_new_size_for_new_clients_and_no_request_beyond_it() {
    let (folder, program, mut client, mut connected) = serve(2 * MIB, "");
    let resize = |client: &mut crate::Client, size: u64| {
        client.done("block_resize", json!({"node-name": "d", "size": size}));
    };
    resize(&mut client, MIB);
    let beyond = connected.result_of(command::TRIM, 0, (MIB, 512));
    assert_eq!(beyond, NbdErrno::Inval.to_wire());
    assert_eq!(connected.result_of(command::TRIM, 0, (MIB - 512, 512)), 0);
    resize(&mut client, 4 * MIB);
    let old = connected.result_of(command::TRIM, 0, (2 * MIB, 512));
    assert_eq!(old, NbdErrno::Inval.to_wire(), "it knows 2 MiB");
    let mut new = RawClient::enter(&folder, "d");
    assert_eq!(new.result_of(command::TRIM, 0, (4 * MIB - 512, 512)), 0);
    program.stop();
}

#[test]
fn a_node_is_exchanged_under_a_connected_client() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("other", MIB);
    let line = format!(
        "--blockdev file,node-name=a,filename=disk --blockdev file,node-name=b,filename=other \
         --blockdev raw,node-name=d,file=a {} --export nbd,id=e,node-name=d,writable=on",
        crate::SERVER
    );
    let (program, mut client) = start(&folder, &line);
    let mut connected = RawClient::enter(&folder, "d");
    connected.write(0, 512, 1);
    client.execute("blockdev-reopen options.0.driver=raw options.0.node-name=d options.0.file=b");
    connected.write(0, 512, 2);
    let first_byte = |name: &str| std::fs::read(folder.join(name)).unwrap()[0];
    assert_eq!((first_byte("disk"), first_byte("other")), (1, 2));
    program.stop();
}

#[test]
fn name_that_a_client_asks_for_forges_no_line_of_the_log() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let mut command = folder.command(words(&format!("{} {MONITOR}", disk_line(""))));
    command.env("BLOCKPLANE_LOG", "info");
    let mut program = Process::spawn(command);
    let _monitor = program.connection(&folder.join("qmp"));
    let mut client = RawClient::connect(&folder);
    client.greet().unwrap();
    let name = "x'\r\n<3>ERROR forged: \x1b[31mred\u{9b}2J\u{2028}";
    client
        .send_option(option::EXPORT_NAME, name.as_bytes())
        .unwrap();
    assert!(client.is_closed_within(STUCK_AFTER));
    let log = program.stop().stderr;
    let expected = r"there is no export 'x'\r\n<3>ERROR forged: \u{1b}[31mred\u{9b}2J\u{2028}'";
    assert!(log.contains(expected), "{log}");
}
