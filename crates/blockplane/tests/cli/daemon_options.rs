//! Options of qemu-storage-daemon, without a subcommand.

use crate::front_end::{FrontEnd, READ_ONLY};
use crate::process::{Folder, Process};

/// Scripts expect a storage daemon to print nothing.
#[test]
fn daemon_prints_nothing_without_errors() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let server = folder.start(
        "--object iothread,id=io0 \
         --blockdev driver=file,node-name=f,filename=disk.img \
         --blockdev driver=raw,node-name=d,file=f \
         --export type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,iothread=io0",
        "s",
    );
    let front_end = FrontEnd::connect(&folder.join("s"));
    assert_eq!(front_end.capacity(), 2048);
    assert_eq!(front_end.features() & READ_ONLY, 0);
    assert_eq!(server.stop().assert_success(), "");
    assert_eq!(folder.names(), ["disk.img"]);
}

/// The command line is that of qemu-storage-daemon, which has no option for it.
#[test]
fn environment_sets_the_log_level() {
    let folder = Folder::new();
    let args = [
        "--object",
        "iothread,id=io0",
        "--blockdev",
        "driver=null-co,node-name=d",
        "--export",
        "type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=io0",
    ];
    for (level, said) in [("error", false), ("warn", false), ("Debug", true)] {
        let mut command = folder.command(args);
        command.env("BLOCKPLANE_LOG", level);
        let mut server = Process::spawn(command);
        server.wait_until_accepting(&folder.join("s"));
        let ended = server.stop();
        assert_eq!(ended.stderr.contains("iothread stopped"), said, "{level}");
    }
    let mut command = folder.command(args);
    command.env("BLOCKPLANE_LOG", "loud");
    let ended = Process::spawn(command).ended();
    ended.assert_fails_naming(&["BLOCKPLANE_LOG", "loud", "warn", "debug"]);
}

#[test]
fn json_and_key_value_options_are_equivalent() {
    let folder = Folder::new();
    let server = Process::spawn(folder.command([
        "--object",
        r#"{"qom-type": "iothread", "id": "io0"}"#,
        "--blockdev",
        r#"{"driver": "null-co", "node-name": "a", "size": 5242880}"#,
        "--export",
        r#"{"type": "vhost-user-blk", "id": "ea", "node-name": "a", "num-queues": 3,
            "addr": {"type": "unix", "path": "json"}, "writable": true, "iothread": ["io0"],
            "logical-block-size": 4096}"#,
        "--blockdev",
        "driver=null-co,node-name=b,size=5M",
        "--export=type=vhost-user-blk,id=eb,node-name=b,num-queues=3,addr.type=unix,addr.path=keys,\
         writable=on,iothread.0=io0,logical-block-size=4k",
    ]));
    let mut server = server;
    server.wait_until_accepting(&folder.join("json"));
    server.wait_until_accepting(&folder.join("keys"));
    let [json, keys] = ["json", "keys"].map(|socket| FrontEnd::connect(&folder.join(socket)));
    assert_eq!(json.capacity(), 10240);
    assert_eq!(json.num_queues(), 3);
    assert_eq!(json.features(), keys.features());
    assert_eq!(json.config(), keys.config());
    assert_eq!(json.num_queues(), keys.num_queues());
    server.stop();
}

/// As in qemu-storage-daemon, exports are read-only by default.
#[test]
fn an_export_is_read_only_unless_writable() {
    let folder = Folder::new();
    let server = folder.start(
        "--blockdev null-co,node-name=d \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s",
        "s",
    );
    let front_end = FrontEnd::connect(&folder.join("s"));
    assert_ne!(front_end.features() & READ_ONLY, 0);
    server.stop();
}

/// A daemon without exports runs until a signal stops it.
#[test]
fn daemon_without_exports_runs() {
    let folder = Folder::new();
    let mut server = folder.start_until_file("--blockdev null-co,node-name=d --pidfile pid", "pid");
    assert!(server.is_running());
    server.stop().assert_success();
}

/// As libvhost-user does. QEMU's own test of this export waits for it, and after a reconnection it
/// replaces a call that got lost with the connection before.
#[test]
fn started_queue_signals_its_front_end() {
    let folder = Folder::new();
    let server = folder.start(
        "--blockdev null-co,node-name=d \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s",
        "s",
    );
    let front_end = FrontEnd::connect(&folder.join("s"));
    front_end.start_queues(1);
    front_end.wait_for_call();
    server.stop();
}
