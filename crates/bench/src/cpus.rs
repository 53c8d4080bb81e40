//! Which processor runs what.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

/// Lets the calling thread, and what it starts from now on, run on `cpu` only.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).map_err(Error::io(format!("run on processor {cpu} only")))
}

/// The calling thread runs on `cpu` until this is dropped; then where it ran before.
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    pub fn to(cpu: usize) -> Result<Self> {
        let before =
            sched_getaffinity(None).map_err(Error::io("ask which processors we run on"))?;
        if !before.is_set(cpu) {
            return Err(Error::Unsuitable(format!(
                "processor {cpu} is not among the {} that we may run on: choose others with --server-cpu and --client-cpu",
                before.count()
            )));
        }
        pin(cpu)?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // We ran there before.
        let _ = sched_setaffinity(None, &self.before);
    }
}
