//! Tests that the request path does not allocate, from the first request on.

use std::os::fd::AsRawFd;

use engine::{LinuxAio, Op, Request, Uring};
use test_support::allocations;
use test_support::report::has_io_uring;

use crate::support::{Engine, MaybeRing};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const REQUESTS: usize = 128;
/// The file ends inside the last buffer, so whole, short, resumed and empty reads all happen.
const FILE_BYTES: u64 = 5000;

/// Two buffers for each request, and the arrays that name them.
fn buffers(memory: &mut [[u8; 1024]]) -> Vec<[libc::iovec; 2]> {
    let pairs = memory.as_chunks_mut::<2>().0.iter_mut();
    let iovec = |buffer: &mut [u8; 1024]| libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: 1024,
    };
    pairs.map(|pair| pair.each_mut().map(iovec)).collect()
}

/// Rounds of requests in all variants of an engine, some to a file that is none.
fn allocates_nothing<E: Engine>() {
    let before = allocations::of_this_thread();
    drop(std::hint::black_box(vec![0_u8; 64]));
    assert_eq!(allocations::of_this_thread(), before + 1, "it counts");

    for variant in [true, false] {
        let file = tempfile::tempfile().unwrap();
        file.set_len(FILE_BYTES).unwrap();
        let mut engine = E::start(variant);
        let files = [(-1, false), (file.as_raw_fd(), variant)]
            .map(|(fd, variant)| engine.file(fd, variant));
        // Through the page cache it answers within the call.
        engine.detect_synchronous(file.as_raw_fd());
        let mut memory = vec![[0_u8; 1024]; REQUESTS * 2];
        let mut iov = buffers(&mut memory);
        let fresh = iov.clone();
        let mut out = Vec::with_capacity(REQUESTS);
        let (mut completed, mut failed) = (0, 0);

        let before = allocations::of_this_thread();
        for round in 0..50 {
            iov.copy_from_slice(&fresh);
            for (token, buffers) in (0_u64..).zip(&mut iov) {
                let count = 1 + u32::from(token % 2 == 0);
                let request = Request {
                    op: if token % 9 == 0 { Op::Flush } else { Op::Read },
                    fua: false,
                    offset: (round * 128 + token) * 100 % 6000,
                    iov: buffers.as_mut_ptr(),
                    iov_count: count,
                    len: u64::from(count) * 1024,
                    token,
                };
                // Buffers and arrays live to the end of the round, when nothing is in flight any more.
                engine.push((files[usize::from(token % 7 != 0)], request));
            }
            engine.submit();
            while engine.unfinished() != (0, 0) || engine.has_completions() {
                engine.prepare_to_block_and_recheck();
                engine.reap(&mut out);
                completed += out.len();
                failed += out.iter().filter(|done| done.result.is_err()).count();
                engine.submit();
                out.clear();
            }
        }
        let allocations = allocations::of_this_thread() - before;

        assert_eq!(completed, 50 * REQUESTS);
        let counts = engine.counts();
        assert!(counts.resumed > 0 && failed > 0, "every path: {counts:?}");
        let synchronous = E::DETECTS_SYNCHRONOUS && variant;
        assert_eq!(counts.synchronous > 0, synchronous, "{counts:?}");
        assert_eq!(allocations, 0, "first variant: {variant}");
    }
}

#[test]
fn linux_aio_allocates_nothing() {
    allocates_nothing::<LinuxAio<MaybeRing>>();
}

#[test]
fn io_uring_allocates_nothing() {
    if has_io_uring() {
        allocates_nothing::<Uring>();
    }
}
