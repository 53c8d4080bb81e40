//! Processors of the server and of the load.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

/// Lets the calling thread, and what it starts from now on, run on `cpu` only.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    pin_to(&[cpu])
}

/// Has the calling thread run only when no other thread wants its processor (`SCHED_IDLE`).
pub(crate) fn give_way() -> Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter outlives the call, which only changes how the kernel schedules this thread.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    if set != 0 {
        return Err(Error::io("give way to other threads")(
            std::io::Error::last_os_error(),
        ));
    }
    Ok(())
}

fn pin_to(wanted: &[usize]) -> Result<()> {
    let mut cpus = CpuSet::new();
    for &cpu in wanted {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Error::Unsuitable(format!("there is no processor {cpu}")));
        }
        cpus.set(cpu);
    }
    sched_setaffinity(None, &cpus).map_err(Error::io(format!("run on processors {wanted:?} only")))
}

/// Refuses processors that the calling thread may not run on, nor those that it starts.
pub(crate) fn check(wanted: &[usize]) -> Result<()> {
    usable_among(wanted).map(drop)
}

/// The processors that the calling thread may run on.
pub(crate) fn usable() -> Result<Vec<usize>> {
    Ok(numbers(&usable_among(&[])?))
}

/// The numbers of the processors in a set.
fn numbers(cpus: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| cpus.is_set(cpu))
        .collect()
}

/// All that the calling thread may run on, if `wanted` are among them.
fn usable_among(wanted: &[usize]) -> Result<CpuSet> {
    let usable = sched_getaffinity(None).map_err(Error::io("ask which processors we run on"))?;
    let is_usable = |cpu: usize| cpu < CpuSet::MAX_CPU && usable.is_set(cpu);
    if let Some(cpu) = wanted.iter().find(|&&cpu| !is_usable(cpu)) {
        return Err(Error::Unsuitable(format!(
            "processor {cpu} is not among those that we may run on ({}): choose others for server \
             and client",
            shown(&numbers(&usable))
        )));
    }
    Ok(usable)
}

/// Numbers in ascending order as they are written on a command line: `0-3,8`.
fn shown(cpus: &[usize]) -> String {
    let ranges = cpus.chunk_by(|&cpu, &next| cpu + 1 == next);
    let texts = ranges.map(|range| match range {
        [first, .., last] => format!("{first}-{last}"),
        _ => format!("{}", range[0]),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// The calling thread runs on some processors until this is dropped; then where it ran before.
pub(crate) struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    /// `cpus` may be empty: then nothing changes.
    pub fn to(cpus: &[usize]) -> Result<Self> {
        if cpus.is_empty() {
            return Ok(Pinned { before: None });
        }
        let before = usable_among(cpus)?;
        pin_to(cpus)?;
        Ok(Pinned {
            before: Some(before),
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // We ran there before.
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_round_trip() {
        for (cpus, text) in [
            (&[0][..], "0"),
            (&[0, 1], "0-1"),
            (&[0, 1, 2, 3, 8, 10, 11], "0-3,8,10-11"),
            (&[], ""),
        ] {
            assert_eq!(shown(cpus), text);
        }
    }
}
