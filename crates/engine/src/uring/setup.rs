//! A ring with as much as this kernel has.
//!
//! What is wanted: only one thread submits, and only that thread, inside of its own system calls,
//! finishes completions. Then the kernel needs no locks and no interrupts for it, and a flag in
//! the ring says when there is something to finish. Older kernels get a ring with less.

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

use super::error::UringError;
use super::settings::MAX_RING_EVENTS;

/// What a ring is asked for, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Without the indirection of the submission array (Linux 6.6).
    Direct,
    /// Completions are finished by the submitting thread alone (6.1).
    Deferred,
    /// The submitting thread is not interrupted for completions (5.19).
    Cooperative,
    /// One bad request does not stop a batch (5.18).
    SubmitAll,
    /// A completion queue of our size (5.6).
    Plain,
}

const KINDS: [Kind; 5] = [
    Kind::Direct,
    Kind::Deferred,
    Kind::Cooperative,
    Kind::SubmitAll,
    Kind::Plain,
];

impl Kind {
    fn build(self, entries: u32) -> std::io::Result<IoUring> {
        let mut builder = IoUring::builder();
        // As many completions as there can be requests: the completion queue cannot overflow.
        builder.setup_clamp().setup_cqsize(entries);
        if self != Kind::Plain {
            builder.setup_submit_all();
        }
        match self {
            Kind::Direct => {
                builder.setup_no_sqarray();
                builder.setup_single_issuer().setup_defer_taskrun();
                builder.setup_taskrun_flag();
            }
            Kind::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun();
                builder.setup_taskrun_flag();
            }
            Kind::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Kind::SubmitAll | Kind::Plain => {}
        }
        builder.build(entries)
    }
}

/// The best ring for `max_events` requests that this kernel makes.
pub(super) fn build(max_events: u32) -> Result<(IoUring, Kind), UringError> {
    build_at_most(max_events, Kind::Direct)
}

/// The same, with nothing better than `best`: what an older kernel would give.
pub(super) fn build_at_most(max_events: u32, best: Kind) -> Result<(IoUring, Kind), UringError> {
    let entries = max_events.min(MAX_RING_EVENTS).next_power_of_two();
    let mut last = Errno::INVAL;
    for kind in KINDS.into_iter().skip_while(|kind| *kind != best) {
        match kind.build(entries) {
            Ok(ring) => {
                check_operations(&ring, max_events)?;
                return Ok((ring, kind));
            }
            Err(error) => last = errno(&error),
        }
        if last != Errno::INVAL {
            break;
        }
    }
    if last == Errno::INVAL {
        return Err(UringError::TooOld);
    }
    Err(UringError::of("io_uring_setup", max_events, last))
}

/// Everything that is used without asking again.
fn check_operations(ring: &IoUring, max_events: u32) -> Result<(), UringError> {
    let mut probe = Probe::new();
    match ring.submitter().register_probe(&mut probe) {
        Ok(()) => {}
        Err(error) if errno(&error) == Errno::INVAL => return Err(UringError::TooOld),
        Err(error) => {
            let errno = errno(&error);
            return Err(UringError::of("io_uring_register", max_events, errno));
        }
    }
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
    ];
    if needed.into_iter().all(|code| probe.is_supported(code)) {
        Ok(())
    } else {
        Err(UringError::TooOld)
    }
}

pub(super) fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
