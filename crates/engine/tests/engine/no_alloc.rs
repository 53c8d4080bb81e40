//! Tests that the request path does not allocate, from the first request on.

use std::os::fd::AsRawFd;

use engine::uring::File;
use engine::{AioSettings, IoBackend, LinuxAio, Op, Request, Uring, UringSettings};
use test_support::report::has_io_uring;

use crate::kernel::MaybeRing;

#[global_allocator]
static ALLOCATOR: test_support::allocations::Counting = test_support::allocations::Counting;

const MAX_EVENTS: u32 = 128;
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

#[test]
fn linux_aio_allocates_nothing() {
    let before = test_support::allocations::of_this_thread();
    drop(std::hint::black_box(vec![0_u8; 64]));
    assert_eq!(
        test_support::allocations::of_this_thread(),
        before + 1,
        "the counter counts"
    );

    for ring in [true, false] {
        let file = tempfile::tempfile().unwrap();
        file.set_len(FILE_BYTES).unwrap();
        let settings = AioSettings {
            max_events: MAX_EVENTS,
            max_batch: 0,
        };
        let mut aio = LinuxAio::with_kernel(MaybeRing { ring }, settings).unwrap();
        // Through the page cache it answers within the call.
        aio.start_detecting_synchronous(file.as_raw_fd());
        let mut memory = vec![[0_u8; 1024]; MAX_EVENTS as usize * 2];
        let mut iov = buffers(&mut memory);
        let fresh = iov.clone();
        let mut out = Vec::with_capacity(MAX_EVENTS as usize);
        let mut completed = 0;

        let before = test_support::allocations::of_this_thread();
        for round in 0..50 {
            iov.copy_from_slice(&fresh);
            for (token, buffers) in (0_u64..).zip(&mut iov) {
                let count = 1 + u32::from(token % 2 == 0);
                // Some are refused by io_submit.
                let fd = if token % 7 == 0 { -1 } else { file.as_raw_fd() };
                let request = Request {
                    op: if token % 9 == 0 { Op::Flush } else { Op::Read },
                    fua: false,
                    offset: (round * 128 + token) * 100 % 6000,
                    iov: buffers.as_mut_ptr(),
                    iov_count: count,
                    len: u64::from(count) * 1024,
                    token,
                };
                // SAFETY: buffers and arrays live to the end of the round, when nothing is in
                // flight any more.
                unsafe { aio.start_or_queue(fd, &request) }.unwrap();
            }
            aio.submit();
            while aio.in_flight_count() + aio.pending_count() > 0 || aio.has_completions() {
                aio.reap(&mut out);
                completed += out.len();
                aio.submit();
                out.clear();
            }
        }
        let allocations = test_support::allocations::of_this_thread() - before;

        assert_eq!(completed, 50 * MAX_EVENTS as usize);
        let stats = aio.stats();
        assert!(
            stats.resumed > 0 && stats.refused > 0,
            "every path was taken: {stats:?}"
        );
        assert_eq!(stats.synchronous > 0, ring, "{stats:?}");
        assert_eq!(allocations, 0, "completion ring: {ring}");
    }
}

#[test]
fn io_uring_allocates_nothing() {
    if !has_io_uring() {
        return;
    }
    let file = tempfile::tempfile().unwrap();
    file.set_len(FILE_BYTES).unwrap();
    let settings = UringSettings {
        max_events: MAX_EVENTS,
        ..UringSettings::default()
    };
    let mut ring = Uring::new(settings).unwrap();
    assert!(ring.try_register_file(0, file.as_raw_fd()));
    let mut memory = vec![[0_u8; 1024]; MAX_EVENTS as usize * 2];
    let mut iov = buffers(&mut memory);
    let fresh = iov.clone();
    let mut out = Vec::with_capacity(MAX_EVENTS as usize);
    let (mut completed, mut failed) = (0, 0);

    let before = test_support::allocations::of_this_thread();
    for round in 0..50 {
        iov.copy_from_slice(&fresh);
        for (token, buffers) in (0_u64..).zip(&mut iov) {
            let count = 1 + u32::from(token % 2 == 0);
            let name = match token % 7 {
                0 => File::Descriptor(-1),
                1 => File::Descriptor(file.as_raw_fd()),
                _ => File::Registered(0),
            };
            let request = Request {
                op: if token % 9 == 0 { Op::Flush } else { Op::Read },
                fua: false,
                offset: (round * 128 + token) * 100 % 6000,
                iov: buffers.as_mut_ptr(),
                iov_count: count,
                len: u64::from(count) * 1024,
                token,
            };
            // SAFETY: buffers and arrays live to the end of the round, when nothing is in flight
            // any more.
            unsafe { ring.start_or_queue(name, &request) }.unwrap();
        }
        ring.submit();
        while ring.in_flight_count() + ring.pending_count() > 0 || ring.has_completions() {
            ring.prepare_to_block_and_recheck();
            ring.reap(&mut out);
            completed += out.len();
            failed += out.iter().filter(|done| done.result.is_err()).count();
            ring.submit();
            out.clear();
        }
    }
    let allocations = test_support::allocations::of_this_thread() - before;

    assert_eq!(completed, 50 * MAX_EVENTS as usize);
    let stats = ring.stats();
    assert!(
        stats.resumed > 0 && failed > 0,
        "every path was taken: {stats:?}"
    );
    assert_eq!(allocations, 0);
}
