//! Errors of creating a Linux AIO context, with the remedy where there is one.

use rustix::io::Errno;

use super::settings::MAX_EVENTS_LIMIT;

/// Why a Linux AIO engine cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AioError {
    /// io_setup(2) returned `EAGAIN`: all contexts of the machine together are at their limit.
    #[error(
        "no room for an AIO context of {max_events} requests: {} of fs.aio-max-nr = {} are taken; \
         raise the limit with: sysctl fs.aio-max-nr={}",
        NumberOrUnknown(.aio_nr), NumberOrUnknown(.aio_max_nr), .suggested_max_nr
    )]
    LimitReached {
        /// The requested number of requests.
        max_events: u32,
        /// `fs.aio-max-nr` as it stands, where it can be read.
        aio_max_nr: Option<u64>,
        /// `fs.aio-nr`, what all processes have taken, where it can be read.
        aio_nr: Option<u64>,
        /// A value of `fs.aio-max-nr` that leaves room for this engine and as many again.
        suggested_max_nr: u64,
    },
    /// io_setup(2) returned `ENOSYS`.
    #[error("this kernel has no Linux AIO (built without CONFIG_AIO): use the worker pool instead")]
    NotSupported,
    /// io_setup(2) failed in another way; see its manual page.
    #[error("io_setup for {max_events} requests failed: {errno}")]
    Setup {
        /// The requested number of requests.
        max_events: u32,
        /// The kernel's error.
        errno: Errno,
    },
    /// `max_events` is zero or over [`MAX_EVENTS_LIMIT`].
    #[error("an AIO context of {max_events} requests: must be in range [1, {MAX_EVENTS_LIMIT}]")]
    MaxEvents {
        /// The requested number of requests.
        max_events: u32,
    },
    /// eventfd(2) failed.
    #[error("no eventfd for AIO completions: {errno}")]
    EventFd {
        /// The kernel's error.
        errno: Errno,
    },
}

impl AioError {
    /// The error for an errno of io_setup(2).
    pub(super) fn from_setup_errno(errno: Errno, max_events: u32) -> Self {
        match errno {
            Errno::AGAIN => {
                let aio_max_nr = read_sysctl("/proc/sys/fs/aio-max-nr");
                let aio_nr = read_sysctl("/proc/sys/fs/aio-nr");
                let taken = aio_nr.or(aio_max_nr).unwrap_or(0);
                let suggested_max_nr = taken
                    .saturating_add(2 * u64::from(max_events))
                    .checked_next_power_of_two()
                    .unwrap_or(u64::MAX)
                    .max(aio_max_nr.unwrap_or(0));
                Self::LimitReached {
                    max_events,
                    aio_max_nr,
                    aio_nr,
                    suggested_max_nr,
                }
            }
            Errno::NOSYS => Self::NotSupported,
            errno => Self::Setup { max_events, errno },
        }
    }
}

/// Displays a number, or that it is unknown.
struct NumberOrUnknown<'a>(&'a Option<u64>);

impl std::fmt::Display for NumberOrUnknown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value}"),
            None => f.write_str("(unknown)"),
        }
    }
}

/// Reads the number in a file below `/proc/sys`, if that is possible.
fn read_sysctl(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
