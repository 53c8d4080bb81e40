//! Errors of making a ring, with the remedy.

use rustix::io::Errno;

/// Why there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UringError {
    /// The administrator has switched io_uring off.
    #[error(
        "io_uring is forbidden on this host (kernel.io_uring_disabled = {level}); \
         allow it with: sysctl kernel.io_uring_disabled=0"
    )]
    Disabled {
        /// The sysctl: 1 leaves it to one group and to administrators, 2 to nobody.
        level: u64,
    },
    /// The kernel said `EPERM`, and not because of the sysctl.
    #[error(
        "io_uring is forbidden to this process, most likely by a seccomp filter of its container \
         or service; allow io_uring_setup, io_uring_enter and io_uring_register there"
    )]
    Forbidden,
    /// The kernel said `ENOSYS`.
    #[error("this kernel has no io_uring (before Linux 5.1, or built without CONFIG_IO_URING)")]
    NotSupported,
    /// The kernel has io_uring without an operation that is needed.
    #[error("this kernel's io_uring is too old: Linux 5.6 is needed")]
    TooOld,
    /// The kernel said `ENOMEM`.
    #[error(
        "no memory for an io_uring of {max_events} requests; the kernel may count it as locked \
         memory: raise the limit (ulimit -l, LimitMEMLOCK=) or lower aio-max-events"
    )]
    Memory {
        /// Requests asked for.
        max_events: u32,
    },
    /// `max_events` or `max_workers` is zero.
    #[error("an io_uring of no requests, or with no workers")]
    Nothing,
    /// A system call failed in another way.
    #[error("{call} failed: {errno}")]
    Call {
        /// Which.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

impl UringError {
    /// Reads errno of `call` for the operator.
    pub(super) fn from_errno(call: &'static str, max_events: u32, errno: Errno) -> Self {
        match errno {
            Errno::PERM => match disabled_level() {
                Some(level @ 1..) => Self::Disabled { level },
                _ => Self::Forbidden,
            },
            Errno::NOSYS => Self::NotSupported,
            Errno::NOMEM => Self::Memory { max_events },
            errno => Self::Call { call, errno },
        }
    }
}

fn disabled_level() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_what_to_do() {
        for (errno, remedy) in [
            (Errno::NOSYS, "CONFIG_IO_URING"),
            (Errno::NOMEM, "ulimit -l"),
            (Errno::MFILE, "io_uring_setup failed"),
        ] {
            let text = UringError::from_errno("io_uring_setup", 8, errno).to_string();
            assert!(text.contains(remedy), "{text}");
        }
        let text = UringError::from_errno("io_uring_setup", 8, Errno::PERM).to_string();
        assert!(
            text.contains("sysctl") || text.contains("seccomp"),
            "{text}"
        );
        let text = UringError::Disabled { level: 2 }.to_string();
        assert!(text.contains("sysctl kernel.io_uring_disabled=0"), "{text}");
    }
}
