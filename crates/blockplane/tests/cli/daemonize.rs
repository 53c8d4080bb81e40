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
    /// Runs `start`, which starts a daemon with the pidfile `pid`, and adopts it as a child of the test, so that its exit
    /// status can be seen and it does not outlive a failed test.
    pub fn adopt(folder: &Folder, start: impl FnOnce()) -> Self {
        set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        start();
        let pidfile = folder.join("pid");
        let text = fs::read_to_string(&pidfile).unwrap();
        let pid = Pid::from_raw(text.trim_end().parse().unwrap()).unwrap();
        Daemon { pid, pidfile }
    }

    /// Ends it with SIGTERM and expects status 0.
    pub fn stop(self) {
        kill_process(self.pid, Signal::TERM).unwrap();
        wait_for_end(self.pid);
        let waited = waitpid(Some(self.pid), WaitOptions::empty()).unwrap();
        let (_, status) = waited.unwrap();
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

const LINE: &str = "--daemonize --pidfile pid \
    --blockdev file,node-name=d,filename=disk.img \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on";

#[test]
fn daemonize_returns_when_the_socket_accepts_and_leaves_the_folder_and_the_terminal() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let daemon = Daemon::adopt(&folder, || {
        folder.run(LINE).assert_success();
        // Not later: the command has returned.
        UnixStream::connect(folder.join("s")).unwrap();
    });
    let of_process = |name: &str| format!("/proc/{}/{name}", daemon.pid);
    let name = fs::read_to_string(of_process("comm")).unwrap();
    assert_eq!(name, "blockplane\n");
    let link = |name: &str| fs::read_link(of_process(name)).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    for fd in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(link(fd), Path::new("/dev/null"), "{fd}");
    }
    let session = getsid(Some(daemon.pid)).unwrap();
    assert_eq!(session, daemon.pid, "leads a session of its own");
    // Relative paths refer to the folder of the command, also at the end, when it has long been elsewhere.
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
    let unknown = folder.run(&format!("{LINE} --nonsense"));
    unknown.assert_fails_naming(&["--nonsense"]);
    assert_eq!(folder.names(), [""; 0]);
}
