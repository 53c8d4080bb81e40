//! What submitters rely on: how much room there is, and that every request completes once.

use std::sync::Arc;

use block::{FileOptions, Node, NodeOptions, NullOptions, Op, Request};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{cached, file, folder, image, options};

fn nodes(path: &std::path::Path) -> Vec<Arc<Node>> {
    let lazy = |how| FileOptions {
        no_flush: true,
        unmap: false,
        locking: block::Locking::Off,
        ..how
    };
    let null = |latency_ns| {
        let options = NullOptions {
            size: 1 << 20,
            read_zeroes: true,
            latency_ns,
        };
        Node::open("null", false, &NodeOptions::Null(options)).unwrap()
    };
    vec![
        file(&lazy(options(path))),
        file(&lazy(cached(path))),
        null(0),
        null(1_000_000),
    ]
}

/// Room for n means that n requests are taken, whatever they are; then it says that there is none.
#[test]
fn room_keeps_its_word() {
    let folder = folder();
    let path = image(&folder, "disk", 1 << 20);
    let mut memory = vec![0u8; 8192];
    let start = memory.as_mut_ptr().align_offset(4096);
    for node in nodes(&path) {
        for ops in [
            &[Op::Flush][..],
            &[Op::Discard],
            &[Op::Read],
            &[Op::Flush, Op::Read, Op::Discard],
        ] {
            let mut rig = Rig::with_max_events(64);
            let room = rig.engines.room(&node);
            assert!(room >= 64);
            let base = memory.as_mut_ptr().wrapping_add(start);
            let mut iov: Vec<_> = (0..room)
                .map(|_| libc::iovec {
                    iov_base: base.cast(),
                    iov_len: 512,
                })
                .collect();
            for (index, segment) in iov.iter_mut().enumerate() {
                let op = ops[index % ops.len()];
                let request = Request {
                    op,
                    fua: false,
                    offset: 0,
                    len: 512,
                    iov: segment,
                    iov_count: 1,
                    token: index as u64,
                };
                // SAFETY: lists and memory outlive the loop below, which reaps every request;
                // that all read into the same memory is no matter, nobody looks at it.
                unsafe { rig.engines.submit(&node, request) }.unwrap();
            }
            let mut seen = vec![false; room];
            let mut out = Vec::new();
            while seen.contains(&false) {
                rig.engines.flush_batch();
                rig.engines.reap(&mut out);
                for completion in out.drain(..) {
                    let index = usize::try_from(completion.token).unwrap();
                    assert!(!std::mem::replace(&mut seen[index], true), "twice");
                    assert_eq!(completion.result, Ok(()));
                }
                std::thread::yield_now();
            }
            assert_eq!(rig.engines.room(&node), room, "all of it comes back");
        }
    }
}

#[test]
fn more_requests_than_room_all_complete() {
    let folder = folder();
    let path = image(&folder, "disk", 1 << 20);
    for node in nodes(&path) {
        let mut rig = Rig::with_max_events(16);
        let calls = (0..2000u64).map(|at| match at % 4 {
            0 => Call::write(at * 512, &pattern(at, 512)),
            1 => Call::flush(),
            2 => Call::read(at % 64 * 512, 512),
            _ => Call::discard(0, 512),
        });
        for outcome in rig.all(&node, calls.collect()) {
            assert_eq!(outcome.result, Ok(()));
        }
    }
}

#[test]
fn a_nodes_own_batch_limit_submits_early() {
    let folder = folder();
    let path = image(&folder, "disk", 1 << 20);
    for (limit, batches) in [(0, vec![0, 0, 0, 0, 0]), (2, vec![0, 2, 2, 4, 4])] {
        let node = file(&FileOptions {
            aio_max_batch: limit,
            ..options(&path)
        });
        let mut rig = Rig::new();
        let mut submitted = Vec::new();
        for token in 0..5 {
            let request = Request {
                op: Op::Flush,
                fua: false,
                offset: 0,
                len: 0,
                iov: std::ptr::null_mut(),
                iov_count: 0,
                token,
            };
            // SAFETY: a flush names no memory; the node outlives the engines.
            unsafe { rig.engines.submit(&node, request) }.unwrap();
            submitted.push(rig.engines.aio_stats().unwrap().submitted);
        }
        assert_eq!(submitted, batches);
        drop(rig);
    }
}
