//! Processors of the server and of the load.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

/// Lets the calling thread, and what it starts from now on, run on `cpu` only.
///
/// # Errors
/// [`Error::Unsuitable`] and [`Error::Io`] when there is no such processor, as for the others here.
pub fn pin(cpu: usize) -> Result<()> {
    pin_to(&[cpu])
}

/// Has the calling thread run only when no other thread wants its processor (`SCHED_IDLE`).
///
/// # Errors
/// [`Error::Io`].
pub fn give_way() -> Result<()> {
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
///
/// # Errors
/// [`Error::Unsuitable`].
pub fn check(wanted: &[usize]) -> Result<()> {
    usable_among(wanted).map(drop)
}

/// The processors that the calling thread may run on.
///
/// # Errors
/// [`Error::Io`].
pub fn usable() -> Result<Vec<usize>> {
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
            "processor {cpu} is not among those that we may run on ({:?}): choose others for server and client",
            numbers(&usable)
        )));
    }
    Ok(usable)
}

/// The calling thread runs on some processors until this is dropped; then where it ran before.
pub struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    /// `cpus` may be empty: then nothing changes.
    ///
    /// # Errors
    /// [`Error::Unsuitable`].
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
