//! The null disk, beside others on one iothread.

use block::{DetectZeroes, Node, Op};

use crate::harness::{Call, Rig, first_sector, pattern};
use crate::storage::{file, new_image, null, ways};

#[test]
fn requests_to_a_null_disk_succeed() {
    for latency_ns in [0, 1000] {
        let node = null(latency_ns, true);
        assert_eq!(node.geometry().size, 1 << 20);
        assert!(!node.passes_discards() && node.aio().is_none());
        node.set_guest_block_size(512).unwrap().keep();
        node.set_detect_zeroes(DetectZeroes::On);
        let calls = vec![
            Call::write(0, &pattern(1, 4096)),
            Call::write(0, &[0; 4096]),
            Call::flush(),
            Call::discard(0, 4096),
            Call::write_zeroes(0, 4096, true).fua(),
            Call::read(0, 4096).cut(100),
        ];
        assert_eq!(Rig::new().all_ok(&node, calls)[5], [0; 4096]);
        node.flush_blocking().unwrap();
    }
    let kept = Rig::new().read(&null(0, false), 0, 512);
    assert_eq!(kept, [0xee; 512], "the memory is left as it is");
}

#[test]
fn requests_complete_in_order_of_their_deadlines() {
    let mut rig = Rig::new();
    let [fast, slow, never] = [1_000_000, 50_000_000, 3_600_000_000_000]
        .map(|latency_ns| rig.attach(&null(latency_ns, false)));
    for (token, route) in [(0, &slow), (1, &fast), (2, &never), (3, &slow), (4, &fast)] {
        rig.submit(route, Op::Flush, token);
    }
    let mut out = Vec::new();
    let mut deadlines = Vec::new();
    while out.len() < 4 {
        deadlines.extend(rig.io.next_deadline_ns());
        rig.io.reap_and_poll_tasks(&mut out);
        std::thread::yield_now();
    }
    assert!(out.iter().map(|done| done.token).eq([1, 4, 0, 3]));
    assert!(deadlines.is_sorted());
    assert!(!rig.io.has_completions_or_woken_tasks());
    assert!(rig.io.next_deadline_ns() > deadlines.last().copied());
}

/// A slow disk that is full of waiting requests does not stop the others of its iothread.
#[test]
fn a_slow_disk_fills_only_itself() {
    let (_folder, path) = new_image(1 << 20);
    let mut rig = Rig::new();
    let never = rig.attach(&null(3_600_000_000_000, false));
    let room = rig.io.room(&never);
    for token in 0..room as u64 {
        rig.submit(&never, Op::Flush, token);
    }
    assert_eq!(rig.io.room(&never), 0);
    // SAFETY: its memory is never freed.
    assert!(unsafe { rig.io.submit(&never, first_sector(Op::Flush, 0)) }.is_err());
    rig.ok(&null(0, true), Call::read(0, 512));
    for how in ways(&path) {
        let node = file(&how);
        rig.ok(&node, Call::read(0, 512));
        rig.ok(&node, Call::flush());
        rig.ok(&node, Call::discard(0, 512));
    }
}

/// A window ignores discards: they need nothing done, and so take other places than the disk's own requests.
#[test]
fn room_counts_requests_that_need_nothing_done() {
    let mut rig = Rig::new();
    let slow = null(3_600_000_000_000, false);
    let window = rig.attach(&Node::new_window("window", &slow, 0, None, false, true).unwrap());
    let mut token = 0;
    while rig.io.room(&window) > 0 {
        rig.submit(&window, Op::Discard, token);
        token += 1;
    }
    assert!(token > 0);
}
