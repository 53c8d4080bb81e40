//! Time and switches of a process's threads, from the kernel (`proc(5)`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What threads have used so far, or between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a processor, in nanoseconds.
    pub cpu_ns: u64,
    /// Times that it waited for something: each is a wake-up later.
    pub voluntary_switches: u64,
}

/// A thread and what it has used since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub id: u32,
    /// Since it started.
    pub usage: Usage,
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
        let usage = usage(&entry.path())?;
        Some(Thread { id, usage })
    });
    Ok(threads.collect())
}

fn usage(folder: &Path) -> Option<Usage> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    // sched-stats.rst: time on the processor, time waiting for it, time slices.
    let cpu_ns = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
    let status = read("status")?;
    let mut lines = status.lines();
    let switches = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    Some(Usage {
        cpu_ns,
        voluntary_switches: switches.trim().parse().ok()?,
    })
}

/// What `threads` have used in all.
#[must_use]
pub fn total(threads: &[Thread]) -> Usage {
    threads.iter().fold(Usage::default(), |sum, thread| Usage {
        cpu_ns: sum.cpu_ns + thread.usage.cpu_ns,
        voluntary_switches: sum.voluntary_switches + thread.usage.voluntary_switches,
    })
}

/// What each thread has used between two looks; one that started in between is counted from its
/// start, one that ended is not there.
#[must_use]
pub fn used_between(before: &[Thread], after: &[Thread]) -> Vec<Thread> {
    let since = |thread: &Thread| {
        let old = before.iter().find(|old| old.id == thread.id);
        let (old, now) = (
            old.map_or_else(Usage::default, |old| old.usage),
            thread.usage,
        );
        Thread {
            id: thread.id,
            usage: Usage {
                cpu_ns: now.cpu_ns.saturating_sub(old.cpu_ns),
                voluntary_switches: now
                    .voluntary_switches
                    .saturating_sub(old.voluntary_switches),
            },
        }
    };
    after.iter().map(since).collect()
}
