//! Figures of a process from the kernel: its threads' time and switches, its memory, its
//! descriptors (`proc(5)`).

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};

/// What threads have used so far, or between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a processor, in nanoseconds.
    pub cpu_ns: u64,
    /// Times that it waited for something: each is a wake-up later.
    pub voluntary_switches: u64,
    /// Times that another thread took the processor away.
    pub involuntary_switches: u64,
}

/// A thread and what it has used since it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub id: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Since it started.
    pub usage: Usage,
}

/// What a process has mapped, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Address space.
    pub virtual_bytes: u64,
    /// Pages in memory, those that others share included.
    pub resident_bytes: u64,
    /// The same with shared pages divided among those who share them.
    pub proportional_bytes: u64,
    /// Bytes in pages that are not shared.
    pub private_bytes: u64,
}

/// All threads of a process, in order of their ids.
///
/// # Errors
/// [`Error::Io`] when the process is gone, [`Error::Procfs`].
pub fn threads(pid: u32) -> Result<Vec<Thread>> {
    let folder = PathBuf::from(format!("/proc/{pid}/task"));
    let entries = fs::read_dir(&folder).map_err(Error::io(format!("read {}", folder.display())))?;
    let mut threads = Vec::new();
    for entry in entries.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|id| id.parse().ok()) else {
            continue;
        };
        // A thread that has ended since the folder was read is no thread of this process.
        if let Some(thread) = thread(id, &entry.path())? {
            threads.push(thread);
        }
    }
    threads.sort_by_key(|thread| thread.id);
    Ok(threads)
}

fn thread(id: u32, folder: &Path) -> Result<Option<Thread>> {
    let (status_path, schedstat_path) = (folder.join("status"), folder.join("schedstat"));
    let Ok(status) = fs::read_to_string(&status_path) else {
        return Ok(None);
    };
    let Ok(schedstat) = fs::read_to_string(&schedstat_path) else {
        return Ok(None);
    };
    let missing = |path: &Path, what| Error::Procfs {
        path: path.to_owned(),
        what,
    };
    let in_status = |what| field(&status, what).ok_or_else(|| missing(&status_path, what));
    // sched-stats.rst: time on the processor, time waiting for it, time slices.
    let cpu_ns = first_number(&schedstat).ok_or_else(|| missing(&schedstat_path, "time"))?;
    Ok(Some(Thread {
        id,
        name: field(&status, "Name").unwrap_or_default(),
        usage: Usage {
            cpu_ns,
            voluntary_switches: in_status("voluntary_ctxt_switches")?,
            involuntary_switches: in_status("nonvoluntary_ctxt_switches")?,
        },
    }))
}

/// What `threads` have used in all.
#[must_use]
pub fn total(threads: &[Thread]) -> Usage {
    threads.iter().fold(Usage::default(), |sum, thread| Usage {
        cpu_ns: sum.cpu_ns + thread.usage.cpu_ns,
        voluntary_switches: sum.voluntary_switches + thread.usage.voluntary_switches,
        involuntary_switches: sum.involuntary_switches + thread.usage.involuntary_switches,
    })
}

/// What each thread has used between two looks; one that started in between is counted from its
/// start, one that ended is not there.
#[must_use]
pub fn used_between(before: &[Thread], after: &[Thread]) -> Vec<Thread> {
    let since = |thread: &Thread| {
        let old = before.iter().find(|old| old.id == thread.id);
        let old = old.map_or_else(Usage::default, |old| old.usage);
        let usage = Usage {
            cpu_ns: thread.usage.cpu_ns.saturating_sub(old.cpu_ns),
            voluntary_switches: thread
                .usage
                .voluntary_switches
                .saturating_sub(old.voluntary_switches),
            involuntary_switches: thread
                .usage
                .involuntary_switches
                .saturating_sub(old.involuntary_switches),
        };
        Thread {
            usage,
            ..thread.clone()
        }
    };
    after.iter().map(since).collect()
}

/// Processor time of a process and of all threads that it has had, in nanoseconds, of the kernel's ticks (10 ms as a rule).
///
/// # Errors
/// [`Error::Io`] when the process is gone, [`Error::Procfs`].
pub fn cpu_ns_with_ended_threads(pid: u32) -> Result<u64> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let stat = fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
    // The name, in parentheses, may contain anything. After it come fields 3 and following: 14 is utime, and 15 is stime.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut times = fields.split_whitespace().skip(14 - 3);
    let mut ticks = || times.next()?.parse::<u64>().ok();
    let missing = Error::Procfs {
        path,
        what: "utime and stime",
    };
    let (user, system) = ticks().zip(ticks()).ok_or(missing)?;
    Ok((user + system) * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
}

/// The memory of a process.
///
/// # Errors
/// [`Error::Io`] when the process is gone or not ours, [`Error::Procfs`].
pub fn memory(pid: u32) -> Result<Memory> {
    let read = |name: &str| {
        let path = PathBuf::from(format!("/proc/{pid}/{name}"));
        match fs::read_to_string(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
        }
    };
    let rollup = read("smaps_rollup")?;
    let status = read("status")?;
    let bytes = |(path, text): &(PathBuf, String), what| {
        let kib: u64 = field(text, what).ok_or_else(|| Error::Procfs {
            path: path.clone(),
            what,
        })?;
        Ok(kib * 1024)
    };
    Ok(Memory {
        virtual_bytes: bytes(&status, "VmSize")?,
        resident_bytes: bytes(&rollup, "Rss")?,
        proportional_bytes: bytes(&rollup, "Pss")?,
        private_bytes: bytes(&rollup, "Private_Clean")? + bytes(&rollup, "Private_Dirty")?,
    })
}

/// How many descriptors a process has open.
///
/// # Errors
/// [`Error::Io`] when the process is gone or not ours.
pub fn descriptors(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&path).map_err(Error::io(format!("read {path}")))?;
    Ok(entries.count())
}

/// The first word after `name:` at the beginning of a line.
fn field<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    // A thread's name is all of the line; numbers may have a unit behind them.
    value
        .trim()
        .parse()
        .ok()
        .or_else(|| value.split_whitespace().next()?.parse().ok())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_threads_count() {
        let pid = std::process::id();
        let before = cpu_ns_with_ended_threads(pid).unwrap();
        let busy = std::thread::spawn(|| {
            let own = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            while own().tv_nsec < 100_000_000 && own().tv_sec == 0 {}
        });
        busy.join().unwrap();
        let used = cpu_ns_with_ended_threads(pid).unwrap() - before;
        assert!(used >= 80_000_000, "{used}");
    }
    use std::io::{Read, Write, pipe};

    #[test]
    fn wait_counts_as_one_voluntary_switch_of_its_thread() {
        // Not a socket, whose reader also wakes up when what it wrote before is taken.
        let (mut asked, mut ask) = pipe().unwrap();
        let (mut answered, mut answer) = pipe().unwrap();
        let echo = std::thread::Builder::new()
            .name("IO echo".into())
            .spawn(move || {
                let mut byte = [0];
                while asked.read_exact(&mut byte).is_ok() {
                    answer.write_all(&byte).unwrap();
                }
            })
            .unwrap();
        let pid = std::process::id();
        // It waits once its figures no longer change: then it does not run.
        let settled = || {
            let mut last = None;
            loop {
                std::thread::sleep(std::time::Duration::from_millis(20));
                let threads = threads(pid).unwrap();
                let now = threads.into_iter().find(|thread| thread.name == "IO echo");
                match now {
                    Some(now) if last.as_ref() == Some(&now) => return now,
                    now => last = now,
                }
            }
        };
        let before = settled();
        for _ in 0..3 {
            ask.write_all(&[1]).unwrap();
            answered.read_exact(&mut [0]).unwrap();
            settled();
        }
        let used = used_between(&[before], &[settled()]);
        assert_eq!(used[0].usage.voluntary_switches, 3);
        assert!(used[0].usage.cpu_ns > 0);
        drop(ask);
        echo.join().unwrap();
    }

    #[test]
    fn touched_memory_is_resident_and_private() {
        let pid = std::process::id();
        let before = memory(pid).unwrap();
        let touched = vec![1u8; 64 << 20];
        let after = memory(pid).unwrap();
        assert!(std::hint::black_box(&touched).len() == 64 << 20);
        // Other tests run beside this one: half of it is proof enough.
        assert!(after.private_bytes > before.private_bytes + (32 << 20));
        assert!(after.resident_bytes >= after.private_bytes);
        assert!(after.virtual_bytes > before.virtual_bytes);
        assert!(descriptors(pid).unwrap() >= 3);
    }
}
