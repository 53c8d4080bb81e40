//! The program as a process: started in a folder of its own, watched, and never left behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

/// What has not happened after this time never will. It is far above what anything here needs, so
/// that a busy machine fails no test.
pub const STUCK_AFTER: Duration = Duration::from_secs(60);

/// A folder in which a program runs, removed at the end.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn has(&self, name: &str) -> bool {
        self.join(name).symlink_metadata().is_ok()
    }

    /// The names of everything in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = self.path().read_dir().unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Makes an empty disk.
    pub fn image(&self, name: &str, bytes: u64) {
        File::create_new(self.join(name))
            .and_then(|file| file.set_len(bytes))
            .unwrap();
    }

    /// The program with arguments, to be run here.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blockplane"));
        command
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// The same after a line of shell that sets up what the program inherits.
    pub fn command_after<S: AsRef<OsStr>>(
        &self,
        script: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script, env!("CARGO_BIN_EXE_blockplane")])
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program, words separated by blanks, until it ends.
    pub fn run(&self, line: &str) -> Ended {
        Process::spawn(self.command(line.split_whitespace())).ended()
    }

    /// Starts the program, words separated by blanks, and waits until a socket of this folder
    /// accepts.
    pub fn start(&self, line: &str, socket: &str) -> Process {
        let mut process = Process::spawn(self.command(line.split_whitespace()));
        process.accepts(&self.join(socket));
        process
    }

    /// The same, until a file of this folder holds something.
    pub fn start_until_file(&self, line: &str, file: &str) -> Process {
        let mut process = Process::spawn(self.command(line.split_whitespace()));
        let holds_something = || {
            let metadata = self.join(file).metadata();
            metadata.is_ok_and(|metadata| metadata.len() > 0)
        };
        process.until(file, holds_something);
        process
    }
}

/// A running program. Dropping it kills it: a test ends it with [`Process::stop`].
pub struct Process {
    child: Child,
    stdout: File,
    stderr: File,
}

/// What a program left.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status; `None` when a signal killed it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Process {
    /// Starts it with its output in files, which never block it.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_with(command, None, None)
    }

    /// The same with a standard output that nobody reads any more.
    pub fn spawn_with_stdout_unread(command: Command) -> Self {
        Self::spawn_with(command, Some(broken_pipe()), None)
    }

    /// The same with a standard error that nobody reads any more.
    pub fn spawn_with_stderr_unread(command: Command) -> Self {
        Self::spawn_with(command, None, Some(broken_pipe()))
    }

    fn spawn_with(mut command: Command, out: Option<OwnedFd>, err: Option<OwnedFd>) -> Self {
        let [stdout, stderr] = [(), ()].map(|()| tempfile::tempfile().unwrap());
        let or_file = |fd: Option<OwnedFd>, file: &File| {
            fd.map_or_else(|| file.try_clone().unwrap().into(), Stdio::from)
        };
        command.stdout(or_file(out, &stdout));
        command.stderr(or_file(err, &stderr));
        Process {
            child: command.spawn().unwrap(),
            stdout,
            stderr,
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// What it wrote so far.
    pub fn stdout(&self) -> String {
        text(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Where it writes its log; see [`text`].
    pub fn stderr_file(&self) -> File {
        self.stderr.try_clone().unwrap()
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until something is so, or fails with what the program wrote.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && start.elapsed() < STUCK_AFTER,
                "{what}: not yet, the program {}; {}{}",
                ended.map_or("runs".to_owned(), |status| format!("ended, {status}")),
                self.stdout(),
                self.stderr(),
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it accepts a front-end.
    pub fn accepts(&mut self, socket: &Path) {
        drop(self.connection(socket));
    }

    /// The first connection that it accepts. A socket exists before it is listened on.
    pub fn connection(&mut self, socket: &Path) -> UnixStream {
        let mut stream = None;
        self.until(&format!("accepts at {}", socket.display()), || {
            stream = UnixStream::connect(socket).ok();
            stream.is_some()
        });
        stream.unwrap()
    }

    /// Waits for its end.
    pub fn ended(mut self) -> Ended {
        wait_for_end(self.pid());
        Ended {
            code: self.child.wait().unwrap().code(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// Ends it as an operator does, and expects that all was well.
    pub fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        let ended = self.ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Has ended already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// A failure with one message, that names all of these.
    #[track_caller]
    pub fn failed_naming(&self, words: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.matches("blockplane: ").count(), 1, "{self:?}");
        for word in words {
            assert!(
                self.stderr.contains(word),
                "no '{word}' in: {}",
                self.stderr
            );
        }
    }

    /// Success, with this on standard output only.
    #[track_caller]
    pub fn succeeded(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert_eq!(self.stderr, "");
        &self.stdout
    }
}

/// Waits until a process has ended, without taking its status.
pub fn wait_for_end(pid: Pid) {
    // Of a child whose status nobody took there is a pidfd even when it has ended.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    assert!(readable(&pidfd), "process {pid} does not end");
}

/// Waits until a descriptor is readable; false if it never will be.
pub fn readable(fd: &OwnedFd) -> bool {
    let timeout = Timespec::try_from(STUCK_AFTER).unwrap();
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

/// A pipe that nobody reads any more.
fn broken_pipe() -> OwnedFd {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .unwrap()
        .1
}

/// Words separated by blanks, as arguments.
pub fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

/// All that was written to a file so far.
pub fn text(file: &File) -> String {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes).unwrap()
}
