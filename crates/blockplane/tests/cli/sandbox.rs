//! Privileges that the running program has dropped, as the kernel shows them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use rustix::process::Pid;
use test_support::threads::{read_of_each_thread, status_field};

use crate::capacity;
use crate::process::{Folder, Process, words};

const SERVE: &str = "serve disk.img --socket s";

fn folder_with_disk() -> Folder {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    folder
}

/// A field of each thread's status, with the thread's name (proc_pid_status(5)).
pub fn of_threads(pid: Pid, field: &str) -> Vec<(String, String)> {
    let threads = read_of_each_thread(pid, "status").into_iter();
    let fields = threads.map(|thread| ["Name", field].map(|key| status_field(&thread.text, key)));
    fields.map(Into::into).collect()
}

#[track_caller]
fn assert_all_have(pid: Pid, field: &str, wanted: &str) {
    for (thread, value) in of_threads(pid, field) {
        assert_eq!(value, wanted, "{field} of {thread}");
    }
}

/// What the daemon begins with.
pub fn inherited(field: &str) -> String {
    of_threads(rustix::process::getpid(), field).remove(0).1
}

#[test]
fn sandbox_confines_every_thread_and_iothreads_most() {
    let folder = folder_with_disk();
    let process = folder.start(SERVE, "s");
    let pid = process.pid();
    assert_all_have(pid, "NoNewPrivs", "1");
    assert_all_have(pid, "Seccomp", "2");
    // Besides those that the test has itself, in a container.
    let filters = inherited("Seccomp_filters").parse::<u32>().unwrap();
    let found = of_threads(pid, "Seccomp_filters");
    for (thread, more) in [("blockplane", 1), ("IO io0", 2)] {
        let wanted = (thread.to_owned(), (filters + more).to_string());
        assert!(found.contains(&wanted), "{wanted:?}: {found:?}");
    }
    let stderr = process.stop().stderr;
    assert!(stderr.contains("sandbox: files: "), "{stderr}");
    assert!(!stderr.contains("WARN"), "all of it is there: {stderr}");
}

#[test]
fn privileges_are_kept_without_a_sandbox() {
    let folder = folder_with_disk();
    let process = folder.start(&format!("{SERVE} --sandbox off"), "s");
    for field in ["NoNewPrivs", "Seccomp", "CapEff"] {
        assert_all_have(process.pid(), field, &inherited(field));
    }
    process.stop();
}

/// Files that are not configured are out of reach; those that the daemon creates and removes are not.
#[test]
fn strict_sandbox_allows_configured_files_only() {
    let folder = folder_with_disk();
    fs::create_dir(folder.join("run")).unwrap();
    folder.image("other.img", 1 << 20);
    let line = "--sandbox strict --pidfile run/pid --blockdev file,node-name=d,filename=disk.img \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=run/s,writable=on \
                --metrics unix:run/metrics \
                --chardev socket,id=c,path=run/qmp,server=on,wait=off --monitor c";
    let mut process = folder.start(line, "run/s");
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
    assert_eq!(fs::read_dir(folder.join("run")).unwrap().count(), 0);
}

/// Other users cannot connect to a monitor, whatever the umask.
#[test]
fn monitor_socket_is_accessible_to_its_user_only() {
    let folder = Folder::new();
    let line = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor c \
                --chardev socket,id=d,path=all,server=on,wait=off,users=4294967294 --monitor d";
    let command = folder.command_after("umask 0; exec \"$0\" \"$@\"", words(line));
    let mut process = Process::spawn(command);
    for (socket, mode, code) in [("qmp", 0o600, 0), ("all", 0o777, 1)] {
        process.wait_until_accepting(&folder.join(socket));
        let permissions = fs::metadata(folder.join(socket)).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, mode, "{socket}");
        let answer = folder.run(&format!("qmp {socket} query-version"));
        assert_eq!(answer.code, Some(code), "{answer:?}");
    }
    let stderr = process.stop().stderr;
    let refusal = "a user who may not connect here";
    assert!(stderr.contains(refusal), "{stderr}");
}

#[test]
fn root_can_serve_as_another_user() {
    if !rustix::process::geteuid().is_root() {
        test_support::report::not_run("only root can become another user");
        return;
    }
    let folder = folder_with_disk();
    folder.image("roots.img", 1 << 20);
    fs::set_permissions(folder.join("roots.img"), PermissionsExt::from_mode(0o600)).unwrap();
    for name in ["disk.img", "."] {
        chown(folder.join(name), Some(65534), None).unwrap();
    }
    for (line, words) in [
        (
            "serve roots.img --socket s --user 65534",
            &["roots.img", "Permission denied"][..],
        ),
        (
            "serve disk.img --socket s --user no-such-user",
            &["there is no user 'no-such-user'"],
        ),
    ] {
        folder.run(line).assert_fails_naming(words);
    }
    let process = folder.start(&format!("{SERVE} --user 65534"), "s");
    for (thread, ids) in of_threads(process.pid(), "Uid") {
        assert_eq!(ids.split_whitespace().next(), Some("65534"), "{thread}");
    }
    assert_all_have(process.pid(), "CapPrm", "0000000000000000");
    assert_eq!(capacity(&folder, "s"), 1 << 20);
    process.stop();
}
