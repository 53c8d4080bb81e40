//! Creates an io_uring with the best setup flags that this kernel has, and checks that it has the operations that are needed.
//!
//! The best kind of ring is used by one thread only, which flushes completions inside of its own system calls. The kernel
//! then needs no locks and no interrupts for it, and a flag in the ring says when there are completions to flush. Older
//! kernels get a ring with fewer features.

use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

use super::error::UringError;
use super::settings::MAX_RING_EVENTS;

/// Kinds of rings, by their setup flags, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingKind {
    /// Without the indirection of the submission array (Linux 6.6).
    Direct,
    /// Completions are flushed by the submitting thread alone (6.1).
    Deferred,
    /// The submitting thread is not interrupted for completions (5.19).
    Cooperative,
    /// One bad request does not stop a batch (5.18).
    SubmitAll,
    /// The size of the completion queue can be set (5.6).
    Plain,
}

const RING_KINDS: [RingKind; 5] = [
    RingKind::Direct,
    RingKind::Deferred,
    RingKind::Cooperative,
    RingKind::SubmitAll,
    RingKind::Plain,
];

impl RingKind {
    /// Asks the kernel for a ring of this kind.
    fn build(self, entries: u32) -> std::io::Result<IoUring> {
        let mut builder = IoUring::builder();
        // As many completions as there can be requests: the completion queue cannot overflow.
        builder.setup_clamp().setup_cqsize(entries);
        if self != RingKind::Plain {
            builder.setup_submit_all();
        }
        match self {
            RingKind::Direct => {
                builder.setup_no_sqarray();
                builder.setup_single_issuer().setup_defer_taskrun();
                builder.setup_taskrun_flag();
            }
            RingKind::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun();
                builder.setup_taskrun_flag();
            }
            RingKind::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            RingKind::SubmitAll | RingKind::Plain => {}
        }
        builder.build(entries)
    }
}

/// Builds the best ring for `max_events` requests that this kernel supports.
pub(super) fn build_best_ring(max_events: u32) -> Result<(IoUring, RingKind), UringError> {
    build_best_ring_with(max_events, RingKind::build)
}

/// The same on another kernel, `make`, which refuses unknown features with `EINVAL`.
fn build_best_ring_with(
    max_events: u32,
    mut make: impl FnMut(RingKind, u32) -> std::io::Result<IoUring>,
) -> Result<(IoUring, RingKind), UringError> {
    let entries = max_events.min(MAX_RING_EVENTS).next_power_of_two();
    for kind in RING_KINDS {
        match make(kind, entries) {
            Ok(ring) => {
                check_operations(&ring, max_events)?;
                return Ok((ring, kind));
            }
            Err(error) if errno_of(&error) == Errno::INVAL => {}
            Err(error) => {
                return Err(UringError::from_errno(
                    "io_uring_setup",
                    max_events,
                    errno_of(&error),
                ));
            }
        }
    }
    Err(UringError::TooOld)
}

/// Checks that the kernel has all operations that are used without a further check.
fn check_operations(ring: &IoUring, max_events: u32) -> Result<(), UringError> {
    let mut probe = Probe::new();
    match ring.submitter().register_probe(&mut probe) {
        Ok(()) => {}
        Err(error) if errno_of(&error) == Errno::INVAL => return Err(UringError::TooOld),
        Err(error) => {
            let errno = errno_of(&error);
            return Err(UringError::from_errno(
                "io_uring_register",
                max_events,
                errno,
            ));
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

/// The errno of an I/O error; `EIO` if it has none.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::super::ring::KernelRing;
    use super::super::{File, Uring, UringSettings};
    use super::*;
    use crate::{Completion, IoBackend, Op, Request};

    /// A kernel without the kinds of rings that are better than `best`.
    fn older(best: RingKind) -> impl FnMut(RingKind, u32) -> std::io::Result<IoUring> {
        let better = RING_KINDS.into_iter().take_while(move |kind| *kind != best);
        let better: Vec<_> = better.collect();
        move |kind, entries| {
            if better.contains(&kind) {
                Err(Errno::INVAL.into())
            } else {
                kind.build(entries)
            }
        }
    }

    /// Runs one request, like a loop that sleeps until the eventfd is written.
    fn run(ring: &mut Uring, (op, fua): (Op, bool), fd: i32, memory: &mut [u8]) -> Vec<Completion> {
        let mut iov = libc::iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: memory.len(),
        };
        let request = Request {
            op,
            fua,
            offset: 0,
            iov: &raw mut iov,
            iov_count: 1,
            len: memory.len() as u64,
            token: 5,
        };
        // SAFETY: the buffer and its array outlive the loop, which ends with the completion.
        unsafe { ring.start_or_queue(File::Descriptor(fd), &request) }.unwrap();
        ring.submit();
        let mut out = Vec::new();
        while out.is_empty() {
            if !ring.prepare_to_block_and_recheck() {
                let minute = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                let polled = poll(
                    &mut [PollFd::new(&ring.eventfd(), PollFlags::IN)],
                    Some(&minute),
                );
                assert!(matches!(polled, Ok(1) | Err(Errno::INTR)), "no signal");
                // Resets the eventfd for the next wait.
                let _ = rustix::io::read(ring.eventfd(), &mut [0; 8]);
            }
            ring.reap(&mut out);
            ring.submit();
        }
        out
    }

    /// The kernel that runs this test may be an older one itself.
    #[test]
    fn an_older_kernel_gets_its_best_ring_and_that_works() {
        if !test_support::report::has_io_uring() {
            return;
        }
        let (_, ours) = build_best_ring(8).unwrap();
        let known = RING_KINDS.into_iter().skip_while(|kind| *kind != ours);
        for best in known {
            let built = build_best_ring_with(8, older(best)).unwrap();
            assert_eq!(built.1, best);
            let settings = UringSettings {
                max_events: 8,
                ..UringSettings::default()
            };
            let ring = KernelRing::finish_setup(built, settings).unwrap();
            let mut ring = Uring::with_ring(ring, settings);
            let file = tempfile::tempfile().unwrap();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            let mut memory = [7; 512];
            let done = Completion {
                token: 5,
                result: Ok(()),
            };
            // More rounds than the ring has places.
            for round in 0..20 {
                memory.fill(round);
                let write = (Op::Write, round == 3);
                assert_eq!(run(&mut ring, write, fd, &mut memory), [done], "{best:?}");
                assert_eq!(
                    run(&mut ring, (Op::Flush, false), fd, &mut []),
                    [done],
                    "{best:?}"
                );
                memory.fill(0xee);
                assert_eq!(
                    run(&mut ring, (Op::Read, false), fd, &mut memory),
                    [done],
                    "{best:?}"
                );
                assert_eq!(memory, [round; 512], "{best:?}");
            }
            let mut stored = [0; 512];
            file.read_exact_at(&mut stored, 0).unwrap();
            assert_eq!(stored, [19; 512]);
        }
    }

    #[test]
    fn only_unknown_features_are_retried_with_fewer() {
        for (errno, calls, error) in [
            (Errno::INVAL, RING_KINDS.len(), UringError::TooOld),
            (Errno::NOSYS, 1, UringError::NotSupported),
            (Errno::NOMEM, 1, UringError::Memory { max_events: 8 }),
        ] {
            let mut tried = Vec::new();
            let refused = build_best_ring_with(8, |kind, _| {
                tried.push(kind);
                Err(errno.into())
            });
            assert_eq!(refused.err(), Some(error));
            assert_eq!(tried, RING_KINDS[..calls]);
        }
        let mut calls = 0;
        let refused = build_best_ring_with(8, |_, _| {
            calls += 1;
            Err([Errno::INVAL, Errno::MFILE][usize::from(calls == 3)].into())
        });
        let call = "io_uring_setup";
        let errno = Errno::MFILE;
        assert_eq!(refused.err(), Some(UringError::Call { call, errno }));
        assert_eq!(calls, 3);
    }
}
