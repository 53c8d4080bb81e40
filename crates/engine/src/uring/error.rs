//! Errors of creating an io_uring, with the remedy where there is one.

use rustix::io::Errno;

/// Why a ring cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UringError {
    /// The administrator has switched io_uring off.
    #[error(
        "io_uring is forbidden on this host (kernel.io_uring_disabled = {level}); \
         allow it with: sysctl kernel.io_uring_disabled=0"
    )]
    Disabled {
        /// The sysctl: 1 allows one group and administrators, 2 forbids it to all.
        level: u64,
    },
    /// The kernel returned `EPERM`, and not because of the sysctl.
    #[error(
        "io_uring is forbidden to this process, most likely by a seccomp filter of its container \
         or service; allow io_uring_setup, io_uring_enter and io_uring_register there"
    )]
    Forbidden,
    /// The kernel returned `ENOSYS`.
    #[error("this kernel has no io_uring (before Linux 5.1, or built without CONFIG_IO_URING)")]
    NotSupported,
    /// The kernel's io_uring lacks an operation that is needed.
    #[error("this kernel's io_uring is too old: Linux 5.6 is needed")]
    TooOld,
    /// The kernel returned `ENOMEM`.
    #[error(
        "no memory for an io_uring of {max_events} requests; the kernel may count it as locked \
         memory: raise the limit (ulimit -l, LimitMEMLOCK=) or lower aio-max-events"
    )]
    Memory {
        /// The requested number of requests.
        max_events: u32,
    },
    /// `max_events` or `max_workers` is zero.
    #[error("an io_uring needs at least one request and one worker")]
    Nothing,
    /// A system call failed in another way.
    #[error("{call} failed: {errno}")]
    Call {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl UringError {
    /// The error for an errno of `call`.
    pub(super) fn from_errno(call: &'static str, max_events: u32, errno: Errno) -> Self {
        match errno {
            Errno::PERM => match read_disabled_level() {
                Some(level @ 1..) => Self::Disabled { level },
                _ => Self::Forbidden,
            },
            Errno::NOSYS => Self::NotSupported,
            Errno::NOMEM => Self::Memory { max_events },
            errno => Self::Call { call, errno },
        }
    }
}

/// Reads the sysctl `kernel.io_uring_disabled` (Linux 6.6); `None`: this kernel does not have it.
fn read_disabled_level() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_the_remedy() {
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
