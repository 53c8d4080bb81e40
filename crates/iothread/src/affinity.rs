//! CPU affinity of iothreads (`cpu-affinity`).
//!
//! Only the iothread is bound. Our worker threads run where the process may: each is there because
//! something blocks or copies, and on the CPU of its iothread it would stand in the way of the one
//! thread that must not wait. The kernel's own workers for io_uring inherit the binding, and there is no
//! way out of it: `IORING_REGISTER_IOWQ_AFF` is cut to what the iothread was bound to (seen on 6.18).
//!
//! The kernel leaves out silently what is offline or not in the cpuset of the process. A user who names a
//! CPU wants that CPU, so here it is an error.

use std::fmt;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Reasons why an iothread cannot run on the CPUs that were set.
#[derive(Debug, thiserror::Error)]
pub enum AffinityError {
    /// A CPU that is absent, or not allowed for this process.
    #[error(
        "iothread {iothread}: cpu-affinity: CPU {cpu} cannot be used; this process may use {allowed} (what is online and in its cpuset)"
    )]
    NotAllowed {
        /// The iothread.
        iothread: String,
        /// The first such CPU.
        cpu: u16,
        /// The allowed CPUs, as ranges.
        allowed: String,
    },
    /// Another error of the kernel.
    #[error("iothread {iothread}: cpu-affinity: {error}")]
    Kernel {
        /// The iothread.
        iothread: String,
        /// The kernel's error.
        error: io::Error,
    },
}

/// Binds the calling thread, an iothread of this name. Returns the CPUs that it was allowed to use before, for its workers.
pub(crate) fn bind_thread(iothread: &str, cpus: &[u16]) -> Result<CpuSet, AffinityError> {
    let kernel = |error: rustix::io::Errno| AffinityError::Kernel {
        iothread: iothread.to_owned(),
        error: error.into(),
    };
    let before = sched_getaffinity(None).map_err(kernel)?;
    // The set may be larger than the present affinity, but not larger than what the cpuset allows.
    let everything = cpu_set(0..CpuSet::MAX_CPU);
    sched_setaffinity(None, &everything).map_err(kernel)?;
    let allowed = sched_getaffinity(None).map_err(kernel)?;
    let is_allowed = |cpu: &&u16| allowed.is_set(usize::from(**cpu));
    if let Some(cpu) = cpus.iter().find(|cpu| !is_allowed(cpu)) {
        sched_setaffinity(None, &before).map_err(kernel)?;
        return Err(AffinityError::NotAllowed {
            iothread: iothread.to_owned(),
            cpu: *cpu,
            allowed: CpuRanges(&allowed).to_string(),
        });
    }
    let wanted = cpu_set(cpus.iter().copied().map(usize::from));
    sched_setaffinity(None, &wanted).map_err(kernel)?;
    tracing::info!(iothread, cpus = %CpuRanges(&wanted), "bound to CPUs");
    Ok(before)
}

/// Restores the affinity of the calling thread.
pub(crate) fn restore_affinity(iothread: &str, cpus: &CpuSet) -> Result<(), AffinityError> {
    sched_setaffinity(None, cpus).map_err(|error| AffinityError::Kernel {
        iothread: iothread.to_owned(),
        error: error.into(),
    })?;
    tracing::info!(iothread, cpus = %CpuRanges(cpus), "no longer bound to CPUs");
    Ok(())
}

/// A set of these CPUs.
fn cpu_set(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(cpu);
    }
    set
}

/// Shows a set as `0-3,8`.
struct CpuRanges<'a>(&'a CpuSet);

impl fmt::Display for CpuRanges<'_> {
    /// Joins the ranges by commas; a range of one CPU is its number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = |cpu: usize| cpu < CpuSet::MAX_CPU && self.0.is_set(cpu);
        let mut comma = "";
        let mut cpu = 0;
        while cpu < CpuSet::MAX_CPU {
            let first = cpu;
            while is_set(cpu) {
                cpu += 1;
            }
            match cpu - first {
                0 => {}
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", cpu - 1)?,
            }
            if cpu > first {
                comma = ",";
            }
            cpu += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends when it surprises")]
mod tests {
    use super::*;

    #[test]
    fn cpu_sets_are_shown_as_ranges() {
        for (cpus, shown) in [
            (&[][..], ""),
            (&[0], "0"),
            (&[0, 1, 2, 5, 7, 8], "0-2,5,7-8"),
            (&[1022, 1023], "1022-1023"),
        ] {
            assert_eq!(CpuRanges(&cpu_set(cpus.iter().copied())).to_string(), shown);
        }
    }

    /// On a thread of its own: the binding ends with it.
    fn on_a_thread<T: Send>(test: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(test).join().unwrap())
    }

    #[test]
    fn binding_returns_the_previous_affinity() {
        let usual = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| usual.is_set(*cpu)).unwrap();
        let (before, bound) = on_a_thread(|| {
            let before = bind_thread("io0", &[u16::try_from(cpu).unwrap()]).unwrap();
            (before, sched_getaffinity(None).unwrap())
        });
        assert_eq!(before, usual);
        assert_eq!(bound, cpu_set([cpu]));
    }

    #[test]
    fn an_absent_cpu_is_reported_with_the_allowed_ones() {
        let usual = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| usual.is_set(*cpu)).unwrap();
        // No machine that tests run on has that many.
        let cpus = [u16::try_from(cpu).unwrap(), 1023];
        let error = on_a_thread(|| bind_thread("io0", &cpus)).unwrap_err();
        let AffinityError::NotAllowed { cpu, allowed, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*cpu, 1023);
        assert!(!allowed.is_empty() && !allowed.contains("1023"), "{error}");
    }
}
