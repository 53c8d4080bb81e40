//! Processors of the server and of the load.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

/// Lets the calling thread, and what it starts from now on, run on these processors only; none: anywhere. It makes system calls
/// and nothing else.
///
/// # Errors
/// What the kernel says where there is no such processor.
pub fn pin_raw(wanted: &[usize]) -> std::io::Result<()> {
    let mut cpus = CpuSet::new();
    for &cpu in wanted {
        cpus.set(cpu);
    }
    match wanted {
        [] => Ok(()),
        _ => Ok(sched_setaffinity(None, &cpus)?),
    }
}

/// As [`pin_raw`].
///
/// # Errors
/// [`Error::Io`].
pub fn pin(wanted: &[usize]) -> Result<()> {
    pin_raw(wanted).map_err(Error::io(format!("run on processors {wanted:?} only")))
}

/// Refuses processors that the calling thread may not run on, nor those that it starts.
///
/// # Errors
/// [`Error::Unsuitable`].
pub fn check(wanted: &[usize]) -> Result<()> {
    let usable = sched_getaffinity(None).map_err(Error::io("ask which processors we run on"))?;
    let is_usable = |cpu: usize| cpu < CpuSet::MAX_CPU && usable.is_set(cpu);
    match wanted.iter().find(|&&cpu| !is_usable(cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| is_usable(cpu)).collect();
            Err(Error::Unsuitable(format!(
                "processor {cpu} is not among those that we may run on ({usable:?}): choose others for server and client"
            )))
        }
    }
}
