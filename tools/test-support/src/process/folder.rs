//! Temporary folder in which a test runs the program: images, sockets and other files.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{Process, ProcessOutput, measuring_program, program};

/// A folder in which a program runs, removed at the end.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Whether there is something of this name in it.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.join(name).symlink_metadata().is_ok()
    }

    /// The names of everything in it, sorted.
    #[must_use]
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
        let mut command = Command::new(program());
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
            .args([OsStr::new("-c"), script.as_ref(), program().as_os_str()])
            .args(args)
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the program, words separated by blanks, until it ends.
    pub fn run(&self, line: &str) -> ProcessOutput {
        Process::spawn(self.command(line.split_whitespace())).ended()
    }

    /// The measuring program with arguments, words separated by blanks, to be run here.
    pub fn measuring(&self, line: &str) -> Command {
        let mut command = Command::new(measuring_program());
        command.args(line.split_whitespace());
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// Runs the measuring program, words separated by blanks, until it ends.
    pub fn measure(&self, line: &str) -> ProcessOutput {
        Process::spawn(self.measuring(line)).ended()
    }

    /// Starts the program, words separated by blanks, and waits until a socket of this folder
    /// accepts.
    pub fn start(&self, line: &str, socket: &str) -> Process {
        let mut process = Process::spawn(self.command(line.split_whitespace()));
        process.wait_until_accepting(&self.join(socket));
        process
    }

    /// The same, until a file of this folder holds something.
    pub fn start_until_file(&self, line: &str, file: &str) -> Process {
        let mut process = Process::spawn(self.command(line.split_whitespace()));
        let holds_something = || {
            let metadata = self.join(file).metadata();
            metadata.is_ok_and(|metadata| metadata.len() > 0)
        };
        process.wait_until(file, holds_something);
        process
    }
}
