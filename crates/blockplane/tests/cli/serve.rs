//! `blockplane serve`: one virtio-blk disk with defaults for interactive use.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::json;
use test_support::qmp::Client;

use crate::front_end::{FrontEnd, READ_ONLY};
use crate::process::{Folder, Process, words};

const MIB: u64 = 1 << 20;

#[test]
fn serve_creates_a_sparse_disk_of_the_given_size() {
    let folder = Folder::new();
    let server = folder.start("serve disk.img --size 3G", "disk.img.sock");
    let metadata = fs::metadata(folder.join("disk.img")).unwrap();
    assert_eq!(metadata.len(), 3 << 30);
    assert!(
        metadata.blocks() * 512 < MIB,
        "{} blocks",
        metadata.blocks()
    );
    let front_end = FrontEnd::connect(&folder.join("disk.img.sock"));
    assert_eq!(front_end.capacity(), (3 << 30) / 512);
    let ended = server.stop();
    assert!(
        ended.stdout.contains("serving disk.img, new on "),
        "{ended:?}"
    );
}

#[test]
fn existing_disk_is_served_unchanged() {
    let folder = Folder::new();
    fs::write(folder.join("disk.img"), vec![7; 4096]).unwrap();
    for size in ["", "--size 4096"] {
        let server = folder.start(&format!("serve disk.img {size}"), "disk.img.sock");
        assert_eq!(
            FrontEnd::connect(&folder.join("disk.img.sock")).capacity(),
            8
        );
        let ended = server.stop();
        assert!(ended.stdout.contains("serving disk.img on "), "{ended:?}");
    }
    assert_eq!(fs::read(folder.join("disk.img")).unwrap(), [7; 4096]);
}

#[test]
fn existing_disk_of_another_size_is_refused_unchanged() {
    let folder = Folder::new();
    fs::write(folder.join("disk.img"), vec![7; 4096]).unwrap();
    for size in ["512", "1M"] {
        let bytes = if size == "1M" { "1048576" } else { size };
        let line = format!("serve disk.img --size {size}");
        folder
            .run(&line)
            .assert_fails_naming(&["disk.img", "4096", bytes]);
    }
    assert_eq!(fs::read(folder.join("disk.img")).unwrap(), [7; 4096]);
    assert_eq!(folder.names(), ["disk.img"]);
}

#[test]
fn missing_disk_is_created_only_with_a_size() {
    let folder = Folder::new();
    folder
        .run("serve disk.img")
        .assert_fails_naming(&["disk.img", "--size"]);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn default_socket_is_named_after_the_disk() {
    let folder = Folder::new();
    fs::create_dir(folder.join("sub")).unwrap();
    folder
        .start("serve sub/disk.img --size 1M", "disk.img.sock")
        .stop();
    folder.start("serve null-co:", "null-co.sock").stop();
    folder
        .start("serve null-co: --socket sub/x", "sub/x")
        .stop();
    folder.start("serve null-co: -s short", "short").stop();
}

/// They may be pasted in another folder.
#[test]
fn announcement_has_the_absolute_path_of_the_socket() {
    let folder = Folder::new();
    let server = folder.start(
        "serve null-co: --socket ./disk.sock --queue-size 128",
        "disk.sock",
    );
    let stdout = server.stop().stdout;
    // The folder as the kernel gives it, should a part of its path be a link.
    let path = folder.path().canonicalize().unwrap().join("disk.sock");
    let path = path.display();
    for hint in [
        format!("-chardev socket,id=disk,path={path} -device vhost-user-blk-pci,chardev=disk\n"),
        format!("--disk vhost_user=true,socket={path},num_queues=1,queue_size=128\n"),
    ] {
        assert!(stdout.contains(&hint), "no '{hint}' in: {stdout}");
    }
}

#[test]
fn quiet_serve_prints_nothing() {
    let folder = Folder::new();
    let server = folder.start("serve null-co: --quiet", "null-co.sock");
    drop(FrontEnd::connect(&folder.join("null-co.sock")));
    assert_eq!(server.stop().assert_success(), "");
}

/// The log is on standard error: standard output is for scripts that wait for the announcement.
#[test]
fn log_reports_connections() {
    let folder = Folder::new();
    let server = folder.start("serve null-co:", "null-co.sock");
    drop(FrontEnd::connect(&folder.join("null-co.sock")));
    let ended = server.stop();
    assert!(ended.stderr.contains("front-end connected"), "{ended:?}");
    assert!(!ended.stdout.contains("front-end connected"), "{ended:?}");
}

#[test]
fn read_only_disk_is_announced_and_offered_as_such() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    let socket = folder.join("disk.img.sock");
    let server = folder.start("serve disk.img --read-only", "disk.img.sock");
    assert_ne!(FrontEnd::connect(&socket).features() & READ_ONLY, 0);
    let ended = server.stop();
    assert!(
        ended.stdout.contains("serving disk.img, read-only on "),
        "{ended:?}"
    );
    let server = folder.start("serve disk.img", "disk.img.sock");
    assert_eq!(FrontEnd::connect(&socket).features() & READ_ONLY, 0);
    server.stop();
}

#[test]
fn null_disk_has_a_size_and_no_file() {
    let folder = Folder::new();
    for (size, sectors) in [("", (1 << 30) / 512), ("--size 5M", 5 * 2048)] {
        let server = folder.start(&format!("serve null-co: {size}"), "null-co.sock");
        assert_eq!(
            FrontEnd::connect(&folder.join("null-co.sock")).capacity(),
            sectors
        );
        assert_eq!(folder.names(), ["null-co.sock"]);
        server.stop();
    }
}

#[test]
fn num_queues_sets_the_number_of_queues() {
    let folder = Folder::new();
    let server = folder.start(
        "serve null-co: --num-queues 3 --iothreads 2",
        "null-co.sock",
    );
    assert_eq!(
        FrontEnd::connect(&folder.join("null-co.sock")).num_queues(),
        3
    );
    server.stop();
}

/// A supervisor may close what it does not read. That is no reason to take a disk from a guest.
#[test]
fn closed_standard_output_does_not_stop_serve() {
    let folder = Folder::new();
    let command = folder.command(words("serve null-co: --pidfile pid"));
    let mut server = Process::spawn_with_stdout_unread(command);
    server.wait_until_accepting(&folder.join("null-co.sock"));
    drop(FrontEnd::connect(&folder.join("null-co.sock")));
    server.stop();
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn closed_standard_error_does_not_stop_serve() {
    let folder = Folder::new();
    let command = folder.command(words("serve null-co: --socket s"));
    let mut server = Process::spawn_with_stderr_unread(command);
    server.wait_until_accepting(&folder.join("s"));
    for _ in 0..2 {
        assert_eq!(FrontEnd::connect(&folder.join("s")).num_queues(), 64);
    }
    server.stop();
}

#[test]
fn limits_of_serve_are_a_throttle_group_in_front_of_its_disks() {
    let folder = Folder::new();
    let line =
        "serve null-co: --size 1M --monitor qmp --iops 2000,max=20000,length=30 --bps write:50M";
    let mut server = folder.start(line, "null-co.sock");
    let mut client = Client::of(server.connection(&folder.join("qmp")));
    let nodes = client.done("query-named-block-nodes", json!({}));
    for (member, value) in [
        ("node-name", json!("disk")),
        ("drv", json!("throttle")),
        ("iops", json!(2000)),
        ("iops_max", json!(20000)),
        ("iops_max_length", json!(30)),
        ("bps_wr", json!(50 << 20)),
    ] {
        assert_eq!(nodes[0][member], value, "{member}: {nodes}");
    }
    assert_eq!(nodes[0]["children"][0]["node-name"], "disk-storage");
    let exports = client.done("query-block-exports", json!({}));
    assert_eq!(exports[0]["node-name"], "disk");
    server.stop();
}
