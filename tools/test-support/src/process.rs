//! Processes of the programs under test: started, watched, ended by signals, and never left behind.

mod folder;

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_open, prlimit,
};

pub use crate::deadline::STUCK_AFTER;
use crate::deadline::{Deadline, eventually};
use crate::events::becomes_readable;
use crate::sockets::try_connect;
use crate::threads::{read_of_each_thread, status_field};
pub use folder::Folder;

/// The `blockplane` under test: `BLOCKPLANE_BIN`, or the one that Cargo built with the running test.
///
/// Cargo names that to integration tests of its package. Where a test runs without Cargo, as in a debugger, it is above the folder of
/// the test's own program.
#[must_use]
pub fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let variables = ["BLOCKPLANE_BIN", "CARGO_BIN_EXE_blockplane"];
        if let Some(path) = variables.into_iter().find_map(env::var_os) {
            // Tests start it in folders of their own.
            let found = Path::new(&path).canonicalize();
            return found.unwrap_or_else(|error| panic!("BLOCKPLANE_BIN={path:?}: {error}"));
        }
        let test = env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
        let path = profile.join("blockplane");
        assert!(path.exists(), "{}: build it first", path.display());
        path
    });
    &PROGRAM
}

/// The `blockplane-bench` of the same build: `BLOCKPLANE_BENCH_BIN`, or one that Cargo builds now.
///
/// Cargo names programs only to tests of their own package.
#[must_use]
pub fn measuring_program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = env::var_os("BLOCKPLANE_BENCH_BIN") {
            return path.into();
        }
        let test = env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
        let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--package", "bench", "--bin"]);
        build.args(["blockplane-bench", "--target-dir"]);
        build.arg(profile.parent().unwrap());
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(status.unwrap().success(), "{build:?}");
        profile.join("blockplane-bench")
    });
    &PROGRAM
}

/// A running program. Dropping it kills it: a test ends it with [`Process::stop`].
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdout: File,
    stderr: File,
}

/// The exit status and output of a program.
#[derive(Debug)]
pub struct ProcessOutput {
    /// Its exit status; `None` when a signal killed it.
    pub code: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Process {
    /// Starts it with its output in files, which never block it.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_with(command, None, None)
    }

    /// The same with a standard output whose reader is gone.
    pub fn spawn_with_stdout_unread(command: Command) -> Self {
        Self::spawn_with(command, Some(broken_pipe()), None)
    }

    /// The same with a standard error whose reader is gone.
    pub fn spawn_with_stderr_unread(command: Command) -> Self {
        Self::spawn_with(command, None, Some(broken_pipe()))
    }

    /// The same with a standard error that the test reads: a pipe or socket, where a file cannot be written.
    pub fn spawn_with_stderr(command: Command, stderr: impl Into<OwnedFd>) -> Self {
        Self::spawn_with(command, None, Some(stderr.into()))
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

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Limits the size of files that it writes, or removes the limit.
    pub fn limit_file_size(&self, bytes: Option<u64>) {
        let limit = Rlimit {
            current: bytes,
            maximum: None,
        };
        prlimit(Some(self.pid()), Resource::Fsize, limit).unwrap();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Stops all of its threads without ending it (SIGSTOP). They stand still when this returns: the kernel stops a thread only
    /// when it is scheduled.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        eventually("every thread stands still", || {
            let threads = read_of_each_thread(self.pid(), "status");
            threads
                .iter()
                .all(|thread| status_field(&thread.text, "State").starts_with('T'))
        });
    }

    /// What it wrote so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        text(&self.stdout)
    }

    /// What it logged so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Where it writes its log; see [`text`].
    #[must_use]
    pub fn stderr_file(&self) -> File {
        self.stderr.try_clone().unwrap()
    }

    /// What its descriptors refer to: files by their paths, others as proc_pid_fd(5) says.
    #[must_use]
    pub fn open_files(&self) -> Vec<PathBuf> {
        let links = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let links = links.map(|link| link.unwrap().path());
        links.filter_map(|link| link.read_link().ok()).collect()
    }

    /// Memory that it has, without what is a file's or shared, in KiB.
    #[must_use]
    pub fn anonymous_memory_kib(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let kib = status_field(&status, "RssAnon");
        kib.trim_end_matches(" kB").parse().unwrap()
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until a condition holds, or fails with what the program wrote: at once when it ends meanwhile.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Deadline::default();
        while !is_so() {
            self.assert_running(what);
            deadline.pause(format_args!("{what}; {}{}", self.stdout(), self.stderr()));
        }
    }

    /// Starts `qemu-storage-daemon` with these options in a folder, and waits until it serves its monitors. A connection before that may
    /// hang it: two of its threads watch the socket, and one of them waits in accept(2) for another client (seen with version 7.2).
    #[track_caller]
    #[must_use]
    pub fn spawn_qemu_storage_daemon(folder: &Folder, options: &str) -> Self {
        let mut command = Command::new("qemu-storage-daemon");
        command
            .args(words(options))
            .args(["--pidfile", "pid"])
            .current_dir(folder.path())
            .stdin(Stdio::null());
        let mut program = Self::spawn(command);
        // It is written when all options have been carried out.
        program.wait_until("writes its pidfile", || folder.join("pid").exists());
        program
    }

    /// Fails if it has ended.
    #[track_caller]
    pub fn assert_running(&mut self, what: &str) {
        if let Some(status) = self.status() {
            let (stdout, stderr) = (self.stdout(), self.stderr());
            panic!("{what}: the program ended, {status}; {stdout}{stderr}");
        }
    }

    /// Waits until it accepts a front-end.
    #[track_caller]
    pub fn wait_until_accepting(&mut self, socket: &Path) {
        drop(self.connection(socket));
    }

    /// The first connection that it accepts, [limited](crate::sockets::limited). A socket exists before it is listened on.
    #[track_caller]
    pub fn connection(&mut self, socket: &Path) -> UnixStream {
        let mut stream = None;
        self.wait_until(&format!("accepts at {}", socket.display()), || {
            stream = try_connect(socket).ok();
            stream.is_some()
        });
        stream.unwrap()
    }

    /// Waits for its end and returns its output.
    #[track_caller]
    pub fn ended(mut self) -> ProcessOutput {
        // One whose status was taken has no number any more.
        if self.is_running() {
            wait_for_end(self.pid());
        }
        ProcessOutput {
            code: self.child.wait().unwrap().code(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// Ends it with SIGTERM and expects status 0.
    #[track_caller]
    pub fn stop(self) -> ProcessOutput {
        self.signal(Signal::TERM);
        let ended = self.ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Has ended already, unless the test failed.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            await_killed(self.pid());
            let _ = self.child.try_wait();
        }
    }
}

impl ProcessOutput {
    /// Asserts a failure with one message that contains all of these words.
    #[track_caller]
    pub fn assert_fails_naming(&self, words: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.matches("blockplane: ").count(), 1, "{self:?}");
        for word in words {
            let stderr = &self.stderr;
            assert!(stderr.contains(word), "no '{word}' in: {stderr}");
        }
    }

    /// Asserts success without errors, and returns the standard output.
    #[track_caller]
    pub fn assert_success(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert_eq!(self.stderr, "");
        &self.stdout
    }
}

/// Waits until a process has ended, without taking its status.
#[track_caller]
pub fn wait_for_end(pid: Pid) {
    // A pidfd can be opened for a child that has ended until its status is taken.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    assert!(becomes_readable(&pidfd), "process {pid} does not end");
}

/// Waits until a process has ended that was killed, without taking its status. For `drop`: it does not panic while the test fails.
#[track_caller]
pub fn await_killed(pid: Pid) {
    if std::thread::panicking() {
        let _ = pidfd_open(pid, PidfdFlags::empty()).is_ok_and(becomes_readable);
    } else {
        wait_for_end(pid);
    }
}

/// A pipe whose reader is gone.
fn broken_pipe() -> OwnedFd {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .unwrap()
        .1
}

/// Words separated by blanks, as arguments.
#[must_use]
pub fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

/// All that was written to a file so far.
#[must_use]
pub fn text(file: &File) -> String {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes).unwrap()
}
