//! Values of errors on the wire: the protocol has its own, whatever the errno of either host is.

/// An error of a request, with its value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum NbdErrno {
    /// `NBD_EPERM`: the export is read-only.
    #[error("operation not permitted")]
    Perm = 1,
    /// `NBD_EIO`
    #[error("input/output error")]
    Io = 5,
    /// `NBD_ENOMEM`
    #[error("out of memory")]
    NoMem = 12,
    /// `NBD_EINVAL`
    #[error("invalid request")]
    Inval = 22,
    /// `NBD_ENOSPC`: the disk is full, or a write reaches beyond the end of the export.
    #[error("no space left")]
    NoSpc = 28,
    /// `NBD_EOVERFLOW`: the request is too large.
    #[error("value too large")]
    Overflow = 75,
    /// `NBD_ENOTSUP`
    #[error("operation not supported")]
    NotSup = 95,
    /// `NBD_ESHUTDOWN`: the server is ending.
    #[error("server is shutting down")]
    Shutdown = 108,
}

// Values of errno on Linux, other than those which are the protocol's as well.
const EACCES: i32 = 13;
const EFBIG: i32 = 27;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;

impl NbdErrno {
    /// The value on the wire.
    #[must_use]
    pub fn to_wire(self) -> u32 {
        self as u32
    }

    /// The error with this value on the wire. A value that the protocol does not have counts as `NBD_EINVAL`, as it says.
    #[must_use]
    pub fn from_wire(value: u32) -> Self {
        match value {
            1 => NbdErrno::Perm,
            5 => NbdErrno::Io,
            12 => NbdErrno::NoMem,
            28 => NbdErrno::NoSpc,
            75 => NbdErrno::Overflow,
            95 => NbdErrno::NotSup,
            108 => NbdErrno::Shutdown,
            _ => NbdErrno::Inval,
        }
    }

    /// The error that stands for an errno of Linux.
    #[must_use]
    pub fn from_linux(errno: i32) -> Self {
        match errno {
            1 | EACCES | EROFS => NbdErrno::Perm,
            12 => NbdErrno::NoMem,
            22 => NbdErrno::Inval,
            28 | EDQUOT | EFBIG => NbdErrno::NoSpc,
            75 => NbdErrno::Overflow,
            95 => NbdErrno::NotSup,
            108 => NbdErrno::Shutdown,
            _ => NbdErrno::Io,
        }
    }

    /// The errno of Linux that stands for the error: they have the same values.
    #[must_use]
    pub fn to_linux(self) -> i32 {
        self.to_wire().cast_signed()
    }
}
