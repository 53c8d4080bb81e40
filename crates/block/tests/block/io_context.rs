//! Tests of room and completions: every request completes once.

use std::sync::Arc;

use block::{FileOptions, Node, Op};
use test_support::deadline::Deadline;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{cached, file, new_image, null, options, ring, ways};

fn nodes(path: &std::path::Path) -> Vec<Arc<Node>> {
    let lazy = |how| FileOptions {
        no_flush: true,
        unmap: false,
        locking: block::Locking::Off,
        force_share: false,
        ..how
    };
    vec![
        file(&lazy(options(path))),
        file(&lazy(ring(options(path)))),
        file(&lazy(cached(path))),
        file(&lazy(ring(cached(path)))),
        null(0, true),
        null(1_000_000, true),
    ]
}

/// Room for n means that n requests are taken, whatever they are; then there is none.
#[test]
fn as_many_requests_are_taken_as_there_is_room_for() {
    let (_folder, path) = new_image(1 << 20);
    for node in nodes(&path) {
        for ops in [
            &[Op::Flush][..],
            &[Op::Discard],
            &[Op::Read],
            &[Op::Flush, Op::Read, Op::Discard],
        ] {
            let mut rig = Rig::with_max_events(64);
            let disk = rig.attach(&node);
            let room = rig.io.room(&disk);
            assert!(room >= 64);
            for (token, op) in (0..room as u64).zip(ops.iter().cycle()) {
                rig.submit(&disk, *op, token);
            }
            let mut done = rig.run_until_completed(room);
            done.sort_unstable_by_key(|done| done.token);
            assert!(done.iter().map(|done| done.token).eq(0..room as u64));
            assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
            assert_eq!(rig.io.room(&disk), room, "all of it comes back");
        }
        // And more than there is room for.
        let calls = (0..2000u64).map(|at| match at % 4 {
            0 => Call::write(at * 512, &pattern(at, 512)),
            1 => Call::flush(),
            2 => Call::read(at % 64 * 512, 512),
            _ => Call::discard(0, 512),
        });
        Rig::with_max_events(16).all_ok(&node, calls.collect());
    }
}

/// A disk that asks for an engine is served where none can be made or watched.
#[test]
fn without_an_engine_workers_carry_the_requests() {
    let (_folder, path) = new_image(1 << 20);
    for how in ways(&path) {
        let node = file(&how);
        let mut rig = Rig::new();
        let mut refuse = |_: std::os::fd::BorrowedFd<'_>| Err(std::io::ErrorKind::Other.into());
        let _route = rig.io.attach(&node, &mut refuse);
        rig.ok(&node, Call::write(512, &[7; 512]));
        assert_eq!(rig.read(&node, 512, 512), [7; 512]);
        rig.ok(&node, Call::flush());
        rig.ok(&node, Call::discard(0, 8192));
        assert_eq!(rig.read(&node, 512, 512), [0; 512]);
        assert_eq!(rig.submitted(), 0);
    }
}

/// A queue that is the last of its disk leaves nothing behind: the file is closed with the node.
#[test]
fn a_disk_is_closed_with_its_last_queue() {
    let (_folder, path) = new_image(1 << 20);
    let open = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = descriptors.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        targets.filter(|target| *target == path).count()
    };
    for how in ways(&path) {
        let mut rig = Rig::new();
        for _ in 0..3 {
            let node = file(&how);
            let [first, second] = [rig.attach(&node), rig.attach(&node)];
            rig.read(&node, 0, 4096);
            rig.io.detach(first);
            rig.read(&node, 0, 4096);
            rig.io.detach(second);
            drop(node);
            assert_eq!(open(), 0);
            // Nor does the ring's table hold it, and with it the lock on the image.
            let locked = FileOptions {
                locking: block::Locking::On,
                force_share: false,
                ..how.clone()
            };
            drop(file(&locked));
        }
    }
}

#[test]
fn a_nodes_own_batch_limit_submits_early() {
    let (_folder, path) = new_image(1 << 20);
    for (aio_max_batch, batches) in [(0, [0, 0, 0, 4, 4]), (2, [0, 2, 2, 4, 4])] {
        for how in [options(&path), ring(options(&path))] {
            let node = file(&FileOptions {
                aio_max_batch,
                ..how
            });
            let mut rig = Rig::new();
            let disk = rig.attach(&node);
            let submitted = [0, 1, 2, 3, 4].map(|token| {
                rig.submit(&disk, Op::Flush, token);
                rig.submitted()
            });
            assert_eq!(submitted, batches);
        }
    }
}

/// A queue submits another read whenever there is room, before discards, which are tasks, get what is left.
#[test]
fn discards_by_the_ring_get_room_beside_reads_without_end() {
    let (_folder, path) = new_image(1 << 20);
    let node = file(&ring(options(&path)));
    let mut rig = Rig::with_max_events(1);
    let disk = rig.attach(&node);
    if rig.io.ring_stats().is_none() {
        return test_support::report::not_run("no io_uring");
    }
    rig.submit(&disk, Op::Discard, 0);
    let (mut reads, mut done, deadline) = (0, Vec::new(), Deadline::default());
    while rig.submitted() <= reads {
        deadline.check("reads complete");
        rig.io.reap_and_poll_tasks(&mut done);
        while rig.io.room(&disk) > 0 {
            reads += 1;
            rig.submit(&disk, Op::Read, reads);
        }
        assert!(reads < 20, "the discard is not submitted");
        rig.io.poll_tasks_and_submit();
        std::thread::yield_now();
    }
    let left = usize::try_from(reads).unwrap() + 1 - done.len();
    done.extend(rig.run_until_completed(left));
    assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
}
