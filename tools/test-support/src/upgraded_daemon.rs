//! A daemon across upgrades: one process after the other, found by its pidfile.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::deadline::{eventually, eventually_ok};
use crate::process::{Folder, Process, ProcessOutput, program, words};
use crate::qmp::Client;

/// The first message of a new program.
pub const HELLO_MESSAGE: &str = r#"{"hello":"0"}"#;

/// The part of a script that sends these messages to the daemon that it is to replace.
#[must_use]
pub fn script_that_sends(messages: &[&str]) -> String {
    let commands = messages
        .iter()
        .map(|json| script_that_sends_in_two_parts(json, ""));
    commands.collect()
}

/// The part of a script that sends one message in two parts, with a command between its lengths and its text.
#[must_use]
pub fn script_that_sends_in_two_parts(message: &str, between: &str) -> String {
    // Bytes, and no descriptors.
    let head = format!(r"\{:03o}\000\000\000\000\000\000\000", message.len());
    let send = |text: &str| format!("printf '{text}' >&$BLOCKPLANE_TAKE_OVER; ");
    format!("{}{between}{}", send(&head), send(message))
}

/// The name that it is started by: in the test's folder, so that another program can take its place.
const PROGRAM: &str = "bp";

/// A daemon in a folder of its own, with a monitor at `qmp` and a pidfile at `pid`.
#[derive(Debug)]
pub struct Daemon {
    /// Its folder.
    pub folder: Folder,
    /// The first of the processes.
    first: Option<Process>,
}

impl Daemon {
    /// Started with these options besides.
    pub fn start_in(folder: Folder, line: &str, environment: &[(&str, &Path)]) -> Self {
        symlink(program(), folder.join(PROGRAM)).unwrap();
        let first = Some(spawn(&folder, line, environment));
        Daemon { folder, first }
    }

    /// Started from a copy of the program: one that becomes another user must be able to reach it when it is replaced,
    /// and that user may not enter the folder of the build where it is below root's home.
    pub fn start_copied_in(folder: Folder, line: &str) -> Self {
        std::fs::copy(program(), folder.join(PROGRAM)).unwrap();
        let first = Some(spawn(&folder, line, &[]));
        Daemon { folder, first }
    }

    /// Kills it, and starts it with these options in its place.
    pub fn kill_and_restart(&mut self, line: &str) {
        self.kill();
        self.restart(line);
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        let pid = self.pid();
        kill_process(pid, Signal::KILL).unwrap();
        match self.first.take() {
            Some(first) => _ = first.ended(),
            None => eventually("it has ended", || test_kill_process(pid).is_err()),
        }
        std::fs::remove_file(self.folder.join("pid")).unwrap();
    }

    /// Starts it with these options after it was killed.
    pub fn restart(&mut self, line: &str) {
        self.first = Some(spawn(&self.folder, line, &[]));
    }

    /// Makes an image and exports it.
    pub fn with_image(export: &str, rest: &str) -> Self {
        let folder = Folder::new();
        folder.image("disk.img", 16 << 20);
        let line = format!(
            "--object iothread,id=io0 --object iothread,id=io1 \
             --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
             --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,\
             iothread.0=io0,iothread.1=io1,{export} {rest}"
        );
        Self::start_in(folder, &line, &[])
    }

    /// The process that serves now.
    #[must_use]
    pub fn pid(&self) -> Pid {
        let text = std::fs::read_to_string(self.folder.join("pid")).unwrap();
        Pid::from_raw(text.trim().parse().unwrap()).unwrap()
    }

    /// A client of its monitor.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(&self.folder.join("qmp"))
    }

    /// Another process goes on; which one.
    #[track_caller]
    pub fn upgrade(&mut self) -> Pid {
        let before = self.pid();
        let said = self.folder.run("upgrade qmp --json");
        let answer: Value = serde_json::from_str(said.assert_success()).unwrap();
        assert!(answer["pause-us"].is_u64(), "{answer}");
        let after = self.pid();
        assert_ne!(before, after);
        assert_eq!(answer["pid"], after.as_raw_nonzero().get());
        self.wait_for_replaced_process();
        after
    }

    /// Waits until the process that was replaced has ended, if that is the first: others are no children of ours.
    #[track_caller]
    fn wait_for_replaced_process(&mut self) {
        if let Some(first) = self.first.take() {
            let ended = first.ended();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    }

    /// It ends by itself.
    #[track_caller]
    pub fn ended(&mut self) -> ProcessOutput {
        self.first.take().expect("it was not upgraded").ended()
    }

    /// The process stays; what is said.
    #[track_caller]
    pub fn fails_to_upgrade(&mut self) -> String {
        let before = self.pid();
        let said = self.folder.run("upgrade qmp");
        said.assert_fails_naming(&["upgrade: GenericError"]);
        assert_eq!(self.pid(), before);
        self.client()
            .done("query-block-exports", serde_json::json!({}));
        said.stderr
    }

    /// The same with a time limit for each message of the new process, in seconds.
    #[track_caller]
    pub fn fails_to_upgrade_within(&mut self, seconds: u32) -> String {
        let before = self.pid();
        let arguments = serde_json::json!({"response-timeout": seconds});
        let said = self.client().fails("upgrade", arguments);
        assert_eq!(self.pid(), before);
        said
    }

    /// Upgrades to a program that may have few descriptors: with `step` more each time it comes a step further, until it takes over.
    /// What is said of each failure; `tried` is called after each attempt.
    pub fn fail_at_each_step(&mut self, step: usize, mut tried: impl FnMut()) -> Vec<String> {
        let program = program().display();
        let mut failures = Vec::new();
        for limit in (12..200).step_by(step) {
            self.replace_program(&format!("ulimit -n {limit}; exec {program} \"$@\""));
            let said = self.folder.run("upgrade qmp");
            tried();
            if said.code == Some(0) {
                self.wait_for_replaced_process();
                return failures;
            }
            failures.push(said.stderr);
        }
        panic!("{failures:?}");
    }

    /// From now on a script stands where the program was.
    pub fn replace_program(&self, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let program = self.folder.join(PROGRAM);
        let new = self.folder.join("new");
        std::fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(new, program).unwrap();
    }

    /// From now on there is no program to upgrade to.
    pub fn remove_program(&self) {
        std::fs::remove_file(self.folder.join(PROGRAM)).unwrap();
    }

    /// Undoes [`replace_program`](Self::replace_program) and [`remove_program`](Self::remove_program).
    pub fn restore_program(&self) {
        let _ = std::fs::remove_file(self.folder.join(PROGRAM));
        symlink(program(), self.folder.join(PROGRAM)).unwrap();
    }

    /// Verified load, until it ends by itself.
    #[must_use]
    pub fn load(&self, queues: u16, seconds: u32) -> BenchLoad {
        let line = format!(
            "run s --verify --pattern randrw --destroy-data --depth 16 --time {seconds}s --queues {queues}"
        );
        BenchLoad(Process::spawn(self.folder.measuring(&line)))
    }

    /// Ends it in good order: nothing is left behind but what it was given.
    pub fn stop(self) {
        let pid = self.pid();
        kill_process(pid, Signal::TERM).unwrap();
        let files = ["pid", "qmp", "s", "metrics.sock"];
        eventually_ok("it has removed its files", || {
            let left = files.iter().any(|file| self.folder.has(file));
            if left {
                Err(self.folder.names())
            } else {
                Ok(())
            }
        });
    }
}

/// Starts the program in a folder, and waits for its pidfile.
fn spawn(folder: &Folder, line: &str, environment: &[(&str, &Path)]) -> Process {
    let line = format!(
        "{line} --pidfile pid --chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c"
    );
    let mut command = Command::new(folder.join(PROGRAM));
    command
        .args(words(&line))
        .envs(environment.iter().copied())
        .current_dir(folder.path())
        .stdin(Stdio::null());
    let mut process = Process::spawn(command);
    let is_written = || {
        let pidfile = folder.join("pid").metadata();
        pidfile.is_ok_and(|file| file.len() > 0)
    };
    process.wait_until("the pidfile", is_written);
    process
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let text = std::fs::read_to_string(self.folder.join("pid"));
        let pid = text.ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // Only if the test has failed, or it has just ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A `blockplane-bench` that writes, reads and compares.
#[derive(Debug)]
pub struct BenchLoad(Process);

impl BenchLoad {
    /// Nothing was lost, and it was never disconnected.
    #[track_caller]
    pub fn ended_well(self) -> ProcessOutput {
        let ended = self.0.ended();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(
            ended.stdout.contains("no difference was found"),
            "{ended:?}"
        );
        ended
    }
}
