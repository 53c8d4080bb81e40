//! Processor time of a process's threads, from the kernel (`proc(5)`).

use std::fs;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// A thread and its time on a processor since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub id: u32,
    /// In nanoseconds.
    pub cpu_ns: u64,
}

/// Time on processors, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of all threads.
    pub cpu_ns: u64,
    /// Of the one that ran longest.
    pub busiest_ns: u64,
}

/// All threads of a process.
///
/// # Errors
/// [`Error::Io`] when the process is gone.
pub fn threads(pid: u32) -> Result<Vec<Thread>> {
    let folder = PathBuf::from(format!("/proc/{pid}/task"));
    let entries = fs::read_dir(&folder).map_err(Error::io(format!("read {}", folder.display())))?;
    // A thread that has ended since the folder was read is no thread of this process.
    let threads = entries.flatten().filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        // sched-stats.rst: time on the processor, time waiting for it, time slices.
        let stat = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        let cpu_ns = stat.split_whitespace().next()?.parse().ok()?;
        Some(Thread { id, cpu_ns })
    });
    Ok(threads.collect())
}

/// What `threads` have used in all.
#[must_use]
pub fn total(threads: &[Thread]) -> Usage {
    used_between(&[], threads)
}

/// What threads have used between two looks; one that started in between is counted from its start, one that ended is not there.
#[must_use]
pub fn used_between(before: &[Thread], after: &[Thread]) -> Usage {
    after.iter().fold(Usage::default(), |sum, thread| {
        let old = before.iter().find(|old| old.id == thread.id);
        let used = thread
            .cpu_ns
            .saturating_sub(old.map_or(0, |old| old.cpu_ns));
        Usage {
            cpu_ns: sum.cpu_ns + used,
            busiest_ns: sum.busiest_ns.max(used),
        }
    })
}
