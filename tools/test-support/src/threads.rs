//! Files of `/proc/PID/task/TID` for each thread of a process (proc_pid_task(5)).

use std::fs;
use std::path::PathBuf;

/// A thread of a process that runs, as one file of the kernel showed it.
#[derive(Clone, Debug)]
pub struct ThreadFile {
    /// The folder `/proc/PID/task/TID`.
    pub folder: PathBuf,
    /// The text of the file.
    pub text: String,
}

/// Reads `file` (for example `status` or `comm`) of each thread of process `pid`. Threads that end meanwhile are left out.
///
/// # Panics
/// When the process does not exist.
#[must_use]
pub fn read_of_each_thread(pid: rustix::process::Pid, file: &str) -> Vec<ThreadFile> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let folders = threads.filter_map(|thread| Some(thread.ok()?.path()));
    let read = |folder: PathBuf| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        Some(ThreadFile { folder, text })
    };
    folders.filter_map(read).collect()
}

/// The folders of a process's threads with this name (`comm`).
///
/// # Panics
/// When the process does not exist.
#[must_use]
pub fn threads_named(pid: rustix::process::Pid, name: &str) -> Vec<PathBuf> {
    read_of_each_thread(pid, "comm")
        .into_iter()
        .filter(|thread| thread.text.trim_end() == name)
        .map(|thread| thread.folder)
        .collect()
}

/// The value of a `Key:` line of a thread's or process's `status` (proc_pid_status(5)).
///
/// # Panics
/// When there is no such line.
#[must_use]
pub fn status_field(status: &str, key: &str) -> String {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value
        .unwrap_or_else(|| panic!("no {key} in {status}"))
        .trim()
        .to_owned()
}
