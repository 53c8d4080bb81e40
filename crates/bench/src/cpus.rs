//! Which processor runs what.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

/// Lets the calling thread, and what it starts from now on, run on `cpu` only.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    pin_to(&[cpu])
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
        let before =
            sched_getaffinity(None).map_err(Error::io("ask which processors we run on"))?;
        let usable = |&&cpu: &&usize| cpu < CpuSet::MAX_CPU && before.is_set(cpu);
        if let Some(cpu) = cpus.iter().find(|cpu| !usable(cpu)) {
            return Err(Error::Unsuitable(format!(
                "processor {cpu} is not among the {} that we may run on: choose others for server \
                 and client",
                before.count()
            )));
        }
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
