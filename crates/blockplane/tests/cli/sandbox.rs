//! Privileges that the running program has dropped, as the kernel shows them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use rustix::process::Pid;
use test_support::threads::{read_of_each_thread, status_field};

use crate::front_end::FrontEnd;
use crate::process::{Folder, Process, words};

const SERVE: &str = "serve disk.img --socket s";

/// A field of each thread's status, by the thread's name (proc_pid_status(5)).
fn of_threads(pid: Pid, field: &str) -> Vec<(String, String)> {
    let threads = read_of_each_thread(pid, "status");
    let mut fields: Vec<_> = threads
        .iter()
        .map(|thread| {
            let value = |key: &str| status_field(&thread.text, key);
            (value("Name"), value(field))
        })
        .collect();
    fields.sort();
    fields
}

fn of(pid: Pid, field: &str, thread: &str) -> String {
    let threads = of_threads(pid, field);
    let found = threads.iter().find(|(name, _)| name == thread);
    found
        .unwrap_or_else(|| panic!("{thread}: {threads:?}"))
        .1
        .clone()
}

/// What the daemon begins with.
fn inherited(field: &str) -> String {
    of_threads(rustix::process::getpid(), field).remove(0).1
}

#[test]
fn sandbox_confines_every_thread_and_iothreads_most() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let process = folder.start(SERVE, "s");
    let pid = process.pid();
    for field in ["NoNewPrivs", "Seccomp"] {
        let wanted = if field == "Seccomp" { "2" } else { "1" };
        for (thread, value) in of_threads(pid, field) {
            assert_eq!(value, wanted, "{field} of {thread}");
        }
    }
    // Besides those that the test has itself, in a container.
    let filters = inherited("Seccomp_filters").parse::<u32>().unwrap();
    for (thread, more) in [("blockplane", 1), ("IO io0", 2)] {
        let found = of(pid, "Seccomp_filters", thread);
        assert_eq!(found, (filters + more).to_string(), "{thread}");
    }
    let stderr = process.stop().stderr;
    assert!(stderr.contains("sandbox: files: "), "{stderr}");
    assert!(!stderr.contains("WARN"), "all of it is there: {stderr}");
}

#[test]
fn privileges_are_kept_without_a_sandbox() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let process = folder.start(&format!("{SERVE} --sandbox off"), "s");
    for field in ["NoNewPrivs", "Seccomp", "CapEff"] {
        let wanted = inherited(field);
        for (thread, value) in of_threads(process.pid(), field) {
            assert_eq!(value, wanted, "{field} of {thread}");
        }
    }
    process.stop();
}

/// Files that are not configured are out of reach; those that the daemon creates and removes are not.
#[test]
fn strict_sandbox_allows_configured_files_only() {
    let folder = Folder::new();
    fs::create_dir(folder.join("run")).unwrap();
    folder.image("disk.img", 1 << 20);
    folder.image("other.img", 1 << 20);
    let line = "--sandbox strict --pidfile run/pid --blockdev file,node-name=d,filename=disk.img \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=run/s,writable=on \
                --metrics unix:run/metrics \
                --chardev socket,id=c,path=run/qmp,server=on,wait=off --monitor c";
    let mut process = Process::spawn(folder.command(words(line)));
    process.wait_until_accepting(&folder.join("run/s"));
    process.wait_until("pidfile", || folder.has("run/pid"));
    let add = |file: &str| {
        let file = folder.join(file);
        folder.run(&format!(
            "qmp run/qmp blockdev-add driver=file node-name=n read-only=true locking=off filename={}",
            file.display()
        ))
    };
    let refused = add("other.img");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("Permission denied"), "{refused:?}");
    assert_eq!(add("disk.img").code, Some(0), "the disk is there already");
    process.stop();
    assert!(!folder.has("run/pid") && !folder.has("run/s") && !folder.has("run/qmp"));
}

#[test]
fn created_disk_is_removed_when_the_start_fails() {
    let folder = Folder::new();
    fs::create_dir(folder.join("s")).unwrap();
    let ended = folder.run("serve new.img --size 1M --socket s");
    ended.assert_fails_naming(&["no socket"]);
    assert!(!folder.has("new.img"));
}

/// Other users cannot connect to a monitor, whatever the umask.
#[test]
fn monitor_socket_is_accessible_to_its_user_only() {
    let folder = Folder::new();
    let line = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor c \
                --chardev socket,id=d,path=all,server=on,wait=off,users=4294967294 --monitor d";
    let command = folder.command_after("umask 0; exec \"$0\" \"$@\"", words(line));
    let mut process = Process::spawn(command);
    process.wait_until_accepting(&folder.join("qmp"));
    process.wait_until_accepting(&folder.join("all"));
    let mode = |name| {
        fs::metadata(folder.join(name))
            .unwrap()
            .permissions()
            .mode()
    };
    assert_eq!(mode("qmp") & 0o777, 0o600);
    assert_eq!(mode("all") & 0o777, 0o777);
    let answer = folder.run("qmp all query-version");
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert_eq!(folder.run("qmp qmp query-version").code, Some(0));
    let stderr = process.stop().stderr;
    assert!(
        stderr.contains("a user who may not connect here"),
        "{stderr}"
    );
}

#[test]
fn root_can_serve_as_another_user() {
    if !rustix::process::geteuid().is_root() {
        test_support::report::not_run("only root can become another user");
        return;
    }
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    folder.image("roots.img", 1 << 20);
    fs::set_permissions(folder.join("roots.img"), PermissionsExt::from_mode(0o600)).unwrap();
    let uid = 65534;
    for name in ["disk.img", "."] {
        chown(folder.join(name), Some(uid), None).unwrap();
    }
    let name = "nobody";
    let refused = folder.run(&format!("serve roots.img --socket s --user {name}"));
    refused.assert_fails_naming(&["roots.img", "Permission denied"]);
    folder
        .run("serve disk.img --socket s --user no-such-user")
        .assert_fails_naming(&["there is no user 'no-such-user'"]);

    let process = folder.start(&format!("{SERVE} --user 65534"), "s");
    for (thread, ids) in of_threads(process.pid(), "Uid") {
        assert_eq!(ids.split_whitespace().next(), Some("65534"), "{thread}");
    }
    for (thread, capabilities) in of_threads(process.pid(), "CapPrm") {
        assert_eq!(capabilities, format!("{:016x}", 0), "{thread}");
    }
    assert_eq!(FrontEnd::connect(&folder.join("s")).capacity(), 2048);
    process.stop();
}
