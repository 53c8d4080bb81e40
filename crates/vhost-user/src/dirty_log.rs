//! Mapping of the log of dirty pages that a front-end shares while it copies its guest to another host: `SET_LOG_BASE`.
//!
//! The log is accessed like the guest's memory, since the front-end may truncate its file at any time.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use unix_socket::passed_fds::{MapError, Mapping};
use vhost::vhost_user::message::VhostUserLog;
use virtqueue::{DirtyLog, GuestMemory};

/// Most bytes of a log: a bit for each page of 48 bits of addresses.
const MAX_LOG_BYTES: u64 = 1 << (48 - 12 - 3);

/// Error of a dirty log that a front-end shares.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirtyLogError {
    /// It is too small for the guest's memory.
    #[error(
        "it has {has} bytes: expected at least {needs}, a bit for each page of the guest's memory"
    )]
    TooSmall { has: u64, needs: u64 },
    /// It is larger than any machine can use.
    #[error("it has {has} bytes: expected at most {MAX_LOG_BYTES}")]
    TooLarge { has: u64 },
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Maps the log that a front-end passes, for a guest with this memory.
pub(crate) fn map_log(
    description: &VhostUserLog,
    file: File,
    memory: Option<&GuestMemory>,
) -> Result<DirtyLog, DirtyLogError> {
    let (has, offset) = (description.mmap_size, description.mmap_offset);
    if has > MAX_LOG_BYTES {
        return Err(DirtyLogError::TooLarge { has });
    }
    check_log_bytes(has, memory)?;
    let mapping = Mapping::new(file, offset, has)?;
    let host = NonNull::new(mapping.host_addr()).expect("a mapping is somewhere");
    // SAFETY: so many bytes are mapped there as long as the mapping lives, and no Rust reference to them exists.
    Ok(unsafe { DirtyLog::new(host, has, Arc::new(mapping)) })
}

/// Checks that a log of so many bytes has a bit for each page.
pub(crate) fn check_log_bytes(has: u64, memory: Option<&GuestMemory>) -> Result<(), DirtyLogError> {
    let needs = memory.map_or(0, DirtyLog::needed_bytes);
    if has < needs {
        return Err(DirtyLogError::TooSmall { has, needs });
    }
    Ok(())
}
