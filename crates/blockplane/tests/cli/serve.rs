//! `blockplane serve`: one virtio-blk disk with defaults for interactive use.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::json;
use test_support::qmp::Client;

use crate::process::{Folder, Process, words};
use crate::{capacity, is_read_only, num_queues};

const MIB: u64 = 1 << 20;

#[test]
fn serve_creates_a_sparse_disk_of_the_given_size() {
    let folder = Folder::new();
    let missing = folder.run("serve disk.img");
    missing.assert_fails_naming(&["disk.img", "--size"]);
    assert_eq!(folder.names(), [""; 0]);
    let server = folder.start("serve disk.img --size 3G", "disk.img.sock");
    let metadata = fs::metadata(folder.join("disk.img")).unwrap();
    assert_eq!(metadata.len(), 3 << 30);
    let blocks = metadata.blocks();
    assert!(blocks * 512 < MIB, "{blocks} blocks");
    assert_eq!(capacity(&folder, "disk.img.sock"), 3 << 30);
    let stdout = server.stop().stdout;
    assert!(stdout.contains("serving disk.img, new on "), "{stdout}");
}

#[test]
fn existing_disk_is_served_unchanged_and_refused_with_another_size() {
    let folder = Folder::new();
    fs::write(folder.join("disk.img"), vec![7; 4096]).unwrap();
    for (options, state) in [
        ("", ""),
        ("--size 4096", ""),
        ("--read-only", ", read-only"),
    ] {
        let server = folder.start(&format!("serve disk.img {options}"), "disk.img.sock");
        assert_eq!(capacity(&folder, "disk.img.sock"), 4096);
        let read_only = is_read_only(&folder, "disk.img.sock");
        assert_eq!(read_only, options == "--read-only");
        let stdout = server.stop().stdout;
        let expected = format!("serving disk.img{state} on ");
        assert!(stdout.contains(&expected), "{stdout}");
    }
    for (size, bytes) in [("512", "512"), ("1M", "1048576")] {
        let refused = folder.run(&format!("serve disk.img --size {size}"));
        refused.assert_fails_naming(&["disk.img", "4096", bytes]);
    }
    assert_eq!(fs::read(folder.join("disk.img")).unwrap(), [7; 4096]);
    assert_eq!(folder.names(), ["disk.img"]);
}

/// They may be pasted in another folder. The log is on standard error: standard output is for scripts that wait for the announcement.
#[test]
fn announcement_has_the_absolute_path_of_the_socket() {
    let folder = Folder::new();
    let line = "serve null-co: --socket ./disk.sock --queue-size 128";
    let server = folder.start(line, "disk.sock");
    assert_eq!(num_queues(&folder, "disk.sock"), 64);
    let ended = server.stop();
    let stdout = &ended.stdout;
    // The folder as the kernel gives it, should a part of its path be a link.
    let path = folder.path().canonicalize().unwrap().join("disk.sock");
    let path = path.display();
    for hint in [
        format!("-chardev socket,id=disk,path={path} -device vhost-user-blk-pci,chardev=disk\n"),
        format!("--disk vhost_user=true,socket={path},num_queues=1,queue_size=128\n"),
    ] {
        assert!(stdout.contains(&hint), "no '{hint}' in: {stdout}");
    }
    assert!(ended.stderr.contains("front-end connected"), "{ended:?}");
    assert!(!stdout.contains("front-end connected"), "{ended:?}");
}

#[test]
fn quiet_null_disk_has_a_size_queues_and_no_file() {
    let folder = Folder::new();
    for (options, size, queues) in [
        ("", 1 << 30, 64),
        ("--size 5M --num-queues 3 --iothreads 2", 5 * MIB, 3),
    ] {
        let line = format!("serve null-co: --quiet {options}");
        let server = folder.start(&line, "null-co.sock");
        assert_eq!(capacity(&folder, "null-co.sock"), size);
        assert_eq!(num_queues(&folder, "null-co.sock"), queues);
        assert_eq!(folder.names(), ["null-co.sock"]);
        assert_eq!(server.stop().assert_success(), "");
    }
}

/// A supervisor may close what it does not read. That is no reason to take a disk from a guest.
#[test]
fn closed_standard_output_or_error_does_not_stop_serve() {
    for spawn in [
        Process::spawn_with_stdout_unread,
        Process::spawn_with_stderr_unread,
    ] {
        let folder = Folder::new();
        let mut server = spawn(folder.command(words("serve null-co: --pidfile pid")));
        server.wait_until_accepting(&folder.join("null-co.sock"));
        for _ in 0..2 {
            assert_eq!(num_queues(&folder, "null-co.sock"), 64);
        }
        server.stop();
        assert_eq!(folder.names(), [""; 0]);
    }
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
