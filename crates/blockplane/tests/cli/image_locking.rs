//! Locks of images that another process uses.

use test_support::deadline::Deadline;
use test_support::sockets::try_connect;

use crate::capacity;
use crate::process::{Folder, Process, text, words};

const MIB: u64 = 1 << 20;

fn folder_with_disk() -> Folder {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    folder
}

#[test]
fn an_image_has_one_writer() {
    let folder = folder_with_disk();
    let first = folder.start("serve disk.img --socket one", "one");
    let drop_in = "--blockdev file,node-name=d,filename=disk.img \
                   --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=two";
    for second in [
        "serve disk.img --socket two",
        "serve disk.img --socket two --read-only",
        drop_in,
    ] {
        let refused = folder.run(second);
        refused.assert_fails_naming(&["disk.img", "another process", "lock"]);
        assert!(!folder.has("two"));
    }
    // The first one did not notice.
    assert_eq!(capacity(&folder, "one"), MIB);
    first.stop();
    folder.start("serve disk.img --socket two", "two").stop();
}

/// What a process had asked of the kernel may keep the lock for a moment after its end.
#[test]
fn start_waits_for_a_lock_that_is_released_soon() {
    let folder = folder_with_disk();
    // A machine that stands still for as long as is waited is not what this is about.
    for _ in 0..20 {
        let first = folder.start("serve disk.img --socket one", "one");
        let mut second = Process::spawn(folder.command(words("serve disk.img --socket two")));
        let log = second.stderr_file();
        second.wait_until("waits", || text(&log).contains("trying again"));
        drop(first);
        let deadline = Deadline::default();
        while second.is_running() {
            if try_connect(&folder.join("two")).is_ok() {
                second.stop();
                return;
            }
            deadline.pause("it serves, or ends");
        }
    }
    panic!("it never took it over");
}

#[test]
fn an_image_is_shared_by_readers_or_without_locks() {
    let folder = folder_with_disk();
    for option in ["--read-only", "--locking off"] {
        let start = |socket| folder.start(&format!("serve disk.img {option} -s {socket}"), socket);
        let (first, second) = (start("one"), start("two"));
        if option == "--read-only" {
            let writer = folder.run("serve disk.img --socket three");
            writer.assert_fails_naming(&["disk.img", "another process", "lock"]);
        }
        first.stop();
        second.stop();
    }
}

#[test]
fn files_that_are_no_disk_are_refused_by_name() {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("folder")).unwrap();
    folder.image("empty", 0);
    for (line, words) in [
        ("serve folder", &["folder", "directory"][..]),
        ("serve empty", &["empty"]),
        ("serve /dev/null --socket s", &["/dev/null"]),
    ] {
        folder.run(line).assert_fails_naming(words);
    }
    assert_eq!(folder.names(), ["empty", "folder"]);
}
