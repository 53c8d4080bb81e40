//! The kernel's AIO structures and numbers: those of `linux/aio_abi.h`, and the header of the completion ring.
//!
//! They are not taken from a crate because the completion ring is in no header: its layout is that of the kernel's
//! `fs/aio.c`, where it has not changed since it was given a magic number. Nothing but layout is here.

use std::mem::{align_of, offset_of, size_of};
use std::sync::atomic::AtomicU32;

/// One request, as io_submit(2) reads it (`struct iocb`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Iocb {
    /// Returned in [`IoEvent::data`].
    pub data: u64,
    /// Written by the kernel while it submits.
    pub key: u32,
    /// `RWF_*` flags, see pwritev2(2).
    pub rw_flags: u32,
    /// `IOCB_CMD_*`.
    pub opcode: u16,
    /// I/O priority; ignored unless a flag asks for it.
    pub reqprio: i16,
    /// The file.
    pub fildes: u32,
    /// Address of the buffer, or of the iovec array for vectored requests.
    pub buf: u64,
    /// Length of the buffer in bytes, or number of iovecs for vectored requests.
    pub nbytes: u64,
    /// Position in the file, bytes.
    pub offset: i64,
    /// Must be zero.
    pub reserved2: u64,
    /// `IOCB_FLAG_*`.
    pub flags: u32,
    /// The eventfd to signal, with [`IOCB_FLAG_RESFD`].
    pub resfd: u32,
}

/// One completion, as the kernel writes it (`struct io_event`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IoEvent {
    /// [`Iocb::data`] of the request.
    pub data: u64,
    /// Address of the request's control block.
    pub obj: u64,
    /// Bytes transferred, or a negative error number.
    pub res: i64,
    /// Not used for file I/O.
    pub res2: i64,
}

/// Head of the completion ring that io_setup(2) maps (`struct aio_ring` in `fs/aio.c`); `nr`
/// [`IoEvent`]s follow at `header_length`.
#[derive(Debug)]
#[repr(C)]
pub struct RingHeader {
    /// The kernel's index of the context.
    pub id: u32,
    /// Number of events that the ring holds.
    pub nr: u32,
    /// Index of the oldest event not yet taken; ours to advance.
    pub head: AtomicU32,
    /// Index after the newest event; the kernel advances it.
    pub tail: AtomicU32,
    /// [`AIO_RING_MAGIC`].
    pub magic: u32,
    /// Features that a reader may ignore.
    pub compat_features: u32,
    /// Features that a reader must know; zero.
    pub incompat_features: u32,
    /// Size of this header, bytes.
    pub header_length: u32,
}

/// [`RingHeader::magic`] of a ring that user space may read.
pub const AIO_RING_MAGIC: u32 = 0xa10a_10a1;

/// Read into one buffer.
pub const IOCB_CMD_PREAD: u16 = 0;
/// Write from one buffer.
pub const IOCB_CMD_PWRITE: u16 = 1;
/// fdatasync(2); Linux 4.18.
pub const IOCB_CMD_FDSYNC: u16 = 3;
/// Nothing, which io_submit(2) refuses.
pub const IOCB_CMD_NOOP: u16 = 6;
/// Read into an array of buffers.
pub const IOCB_CMD_PREADV: u16 = 7;
/// Write from an array of buffers.
pub const IOCB_CMD_PWRITEV: u16 = 8;

/// [`Iocb::resfd`] is an eventfd to signal on completion.
pub const IOCB_FLAG_RESFD: u32 = 1;

/// The write is durable when it completes, see pwritev2(2).
pub const RWF_DSYNC: u32 = 2;

const _: () = {
    // The kernel swaps `aio_key` and `aio_rw_flags` on big-endian machines.
    assert!(cfg!(target_endian = "little"));
    assert!(size_of::<Iocb>() == 64 && align_of::<Iocb>() == 8);
    assert!(offset_of!(Iocb, rw_flags) == 12);
    assert!(offset_of!(Iocb, opcode) == 16);
    assert!(offset_of!(Iocb, fildes) == 20);
    assert!(offset_of!(Iocb, buf) == 24);
    assert!(offset_of!(Iocb, nbytes) == 32);
    assert!(offset_of!(Iocb, offset) == 40);
    assert!(offset_of!(Iocb, flags) == 56);
    assert!(offset_of!(Iocb, resfd) == 60);
    assert!(size_of::<IoEvent>() == 32 && align_of::<IoEvent>() == 8);
    assert!(offset_of!(IoEvent, res) == 16);
    assert!(size_of::<RingHeader>() == 32);
    assert!(offset_of!(RingHeader, head) == 8);
    assert!(offset_of!(RingHeader, tail) == 12);
    assert!(offset_of!(RingHeader, magic) == 16);
    assert!(offset_of!(RingHeader, incompat_features) == 24);
    assert!(offset_of!(RingHeader, header_length) == 28);
};
