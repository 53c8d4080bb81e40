//! The data path does not allocate: from the first request on, not merely after a warm-up.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsRawFd;

use engine::{AioSettings, Io, LinuxAio, Op};

thread_local! {
    /// Allocations of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is the system allocator's; the counter is a plain thread-local integer that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MAX_EVENTS: u32 = 128;
/// The file ends inside the last buffer, so whole, short, resumed and empty reads all happen.
const FILE_BYTES: u64 = 5000;

#[test]
fn push_submit_and_reap_allocate_nothing() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![0_u8; 64]));
    assert_eq!(ALLOCATIONS.get(), before + 1, "the counter counts");

    for completion_ring in [true, false] {
        let file = tempfile::tempfile().unwrap();
        file.set_len(FILE_BYTES).unwrap();
        let settings = AioSettings {
            max_events: MAX_EVENTS,
            max_batch: 0,
            completion_ring,
        };
        let mut aio = LinuxAio::new(settings).unwrap();
        let mut memory = vec![[0_u8; 1024]; MAX_EVENTS as usize * 2];
        let mut iov: Vec<[libc::iovec; 2]> = memory
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .map(|pair| {
                pair.each_mut().map(|b| libc::iovec {
                    iov_base: b.as_mut_ptr().cast(),
                    iov_len: 1024,
                })
            })
            .collect();
        let fresh = iov.clone();
        let mut out = Vec::with_capacity(MAX_EVENTS as usize);
        let mut completed = 0;

        let before = ALLOCATIONS.get();
        for round in 0..50 {
            iov.copy_from_slice(&fresh);
            for (token, buffers) in (0_u64..).zip(&mut iov) {
                let count = 1 + u32::from(token % 2 == 0);
                let io = Io {
                    op: if token % 9 == 0 { Op::Flush } else { Op::Read },
                    // Some are refused by io_submit.
                    fd: if token % 7 == 0 { -1 } else { file.as_raw_fd() },
                    offset: (round * 128 + token) * 100 % 6000,
                    iov: buffers.as_mut_ptr(),
                    iov_count: count,
                    len: u64::from(count) * 1024,
                    token,
                };
                // SAFETY: buffers and arrays live to the end of the round, when nothing is in
                // flight any more.
                unsafe { aio.push(io) }.unwrap();
            }
            aio.submit();
            while aio.in_flight() + aio.pending() > 0 || aio.has_completions() {
                completed += aio.reap(&mut out);
                aio.submit();
                out.clear();
            }
        }
        let allocations = ALLOCATIONS.get() - before;

        assert_eq!(completed, 50 * MAX_EVENTS as usize);
        let stats = aio.stats();
        assert!(
            stats.resumed > 0 && stats.refused > 0,
            "every path was taken: {stats:?}"
        );
        assert_eq!(allocations, 0, "completion ring: {completion_ring}");
    }
}
