//! Checks that a descriptor for kicks, calls, errors or interrupts is an eventfd, and makes it non-blocking.
//!
//! A write to a file on a file system that the front-end serves itself could block for as long as it likes. A write to an
//! eventfd does not block as long as it is non-blocking: a flag that the front-end shares, so signals do not rely on it
//! ([`crate::Signaller`]).

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

/// A descriptor that is no eventfd.
#[derive(Debug, thiserror::Error)]
#[error("a {what} descriptor that is no eventfd")]
pub struct NotAnEventFd {
    /// Its intended use.
    pub what: &'static str,
}

/// Checks the descriptor of a message, if there is one, and makes it non-blocking.
///
/// # Errors
/// [`NotAnEventFd`].
pub fn check_eventfd_and_set_nonblocking(
    what: &'static str,
    file: Option<File>,
) -> Result<Option<OwnedFd>, NotAnEventFd> {
    let Some(file) = file else { return Ok(None) };
    // proc(5): only an eventfd's information has its counter.
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
    let is_eventfd = match info {
        Ok(info) => info.lines().any(|line| line.starts_with("eventfd-count:")),
        // Without /proc: anonymous inodes, eventfds among them, have no file type.
        Err(_) => rustix::fs::fstat(&file).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Unknown
        }),
    };
    if is_eventfd {
        // A write must not wait while the counter is full. (Setting the flag of an eventfd does not fail.)
        if let Ok(flags) = rustix::fs::fcntl_getfl(&file) {
            let _ = rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK);
        }
        Ok(Some(file.into()))
    } else {
        Err(NotAnEventFd { what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn only_eventfds_pass() {
        let eventfd = File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        assert!(
            check_eventfd_and_set_nonblocking("call", Some(eventfd))
                .unwrap()
                .is_some()
        );
        assert!(
            check_eventfd_and_set_nonblocking("call", None)
                .unwrap()
                .is_none()
        );
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        for file in [
            File::from(reader),
            File::from(writer),
            tempfile::tempfile().unwrap(),
        ] {
            let error = check_eventfd_and_set_nonblocking("call", Some(file)).unwrap_err();
            assert_eq!(error.to_string(), "a call descriptor that is no eventfd");
        }
    }
}
