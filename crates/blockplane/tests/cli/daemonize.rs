//! `--daemonize`: the command returns when the disk is served.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::{
    Pid, Signal, WaitOptions, getsid, kill_process, set_child_subreaper, waitpid,
};

use crate::process::{Folder, await_killed, wait_for_end};

/// A program in the background, found by its pidfile.
pub struct Daemon {
    pub pid: Pid,
    pidfile: PathBuf,
}

impl Daemon {
    /// Runs `start`, which starts a daemon, and adopts it as a child of the test, so that its exit
    /// status can be seen and it does not outlive a failed test.
    pub fn adopt(folder: &Folder, pidfile: &str, start: impl FnOnce()) -> Self {
        set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        start();
        let pidfile = folder.join(pidfile);
        Daemon {
            pid: Pid::from_raw(pid_in(&pidfile)).unwrap(),
            pidfile,
        }
    }

    /// Ends it with SIGTERM and expects status 0.
    pub fn stop(self) {
        kill_process(self.pid, Signal::TERM).unwrap();
        wait_for_end(self.pid);
        let (_, status) = waitpid(Some(self.pid), WaitOptions::empty())
            .unwrap()
            .unwrap();
        assert_eq!(status.exit_status(), Some(0), "{status:?}");
        assert!(!self.pidfile.exists());
        std::mem::forget(self);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Only when the test failed.
        let _ = kill_process(self.pid, Signal::KILL);
        await_killed(self.pid);
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
    }
}

fn pid_in(pidfile: &Path) -> i32 {
    fs::read_to_string(pidfile)
        .unwrap()
        .trim_end()
        .parse()
        .unwrap()
}

const LINE: &str = "--daemonize --pidfile pid \
    --blockdev file,node-name=d,filename=disk.img \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on";

fn start(folder: &Folder) -> Daemon {
    folder.image("disk.img", 1 << 20);
    Daemon::adopt(folder, "pid", || {
        folder.run(LINE).assert_success();
        // Not later: the command has returned.
        UnixStream::connect(folder.join("s")).unwrap();
    })
}

#[test]
fn daemonize_returns_when_the_socket_accepts() {
    let folder = Folder::new();
    start(&folder).stop();
}

#[test]
fn pidfile_names_the_background_process() {
    let folder = Folder::new();
    let daemon = start(&folder);
    let name = fs::read_to_string(format!("/proc/{}/comm", daemon.pid)).unwrap();
    assert_eq!(name, "blockplane\n");
    daemon.stop();
}

#[test]
fn background_process_leaves_the_folder_and_the_terminal() {
    let folder = Folder::new();
    let daemon = start(&folder);
    let link = |name: &str| fs::read_link(format!("/proc/{}/{name}", daemon.pid)).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    for fd in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(link(fd), Path::new("/dev/null"), "{fd}");
    }
    assert_eq!(
        getsid(Some(daemon.pid)).unwrap(),
        daemon.pid,
        "leads a session of its own"
    );
    daemon.stop();
}

/// Also at the end, when it has long been elsewhere.
#[test]
fn relative_paths_refer_to_the_folder_of_the_command() {
    let folder = Folder::new();
    let daemon = start(&folder);
    assert_eq!(folder.names(), ["disk.img", "pid", "s"]);
    daemon.stop();
    assert_eq!(folder.names(), ["disk.img"]);
}

#[test]
fn daemonize_fails_when_the_daemon_fails() {
    let folder = Folder::new();
    // The disk is missing. The error must come before the command returns, because output after that is lost.
    for _ in 0..20 {
        folder.run(LINE).assert_fails_naming(&["disk.img"]);
    }
    assert_eq!(folder.names(), [""; 0]);
    folder
        .run(&format!("{LINE} --nonsense"))
        .assert_fails_naming(&["--nonsense"]);
    folder
        .run(&format!("--export x {LINE}"))
        .assert_fails_naming(&["--export"]);
    assert_eq!(folder.names(), [""; 0]);
}
