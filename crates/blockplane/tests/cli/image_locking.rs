//! Locks of images that another process uses.

use test_support::deadline::Deadline;
use test_support::sockets::try_connect;

use crate::front_end::FrontEnd;
use crate::process::{Folder, Process, text, words};

const MIB: u64 = 1 << 20;

#[test]
fn an_image_has_one_writer() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    let first = folder.start("serve disk.img --socket one", "one");
    let drop_in = "--blockdev file,node-name=d,filename=disk.img \
                   --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=two";
    for second in [
        "serve disk.img --socket two",
        "serve disk.img --socket two --read-only",
        drop_in,
    ] {
        folder
            .run(second)
            .assert_fails_naming(&["disk.img", "another process", "lock"]);
        assert!(!folder.has("two"));
    }
    // The first one did not notice.
    assert_eq!(FrontEnd::connect(&folder.join("one")).capacity(), MIB / 512);
    first.stop();
    folder.start("serve disk.img --socket two", "two").stop();
}

/// What a process had asked of the kernel may keep the lock for a moment after its end.
#[test]
fn start_waits_for_a_lock_that_is_released_soon() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
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
fn readers_share_an_image() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    let first = folder.start("serve disk.img --read-only --socket one", "one");
    let second = folder.start("serve disk.img --read-only --socket two", "two");
    let writer = folder.run("serve disk.img --socket three");
    writer.assert_fails_naming(&["disk.img", "another process", "lock"]);
    first.stop();
    second.stop();
}

#[test]
fn locking_can_be_turned_off() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    let first = folder.start("serve disk.img --socket one --locking off", "one");
    folder
        .start("serve disk.img --socket two --locking off", "two")
        .stop();
    first.stop();
}

#[test]
fn files_that_are_no_disk_are_refused_by_name() {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("folder")).unwrap();
    folder.image("empty", 0);
    folder
        .run("serve folder")
        .assert_fails_naming(&["folder", "directory"]);
    folder.run("serve empty").assert_fails_naming(&["empty"]);
    folder
        .run("serve /dev/null --socket s")
        .assert_fails_naming(&["/dev/null"]);
    assert_eq!(folder.names(), ["empty", "folder"]);
}
