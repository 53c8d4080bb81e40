//! Tests with iothreads that write while bitmaps are switched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::Op;
use test_support::deadline::Deadline;

use super::{BitmapAction, BitmapBits, BitmapChange, BitmapError, switch, switch_with};
use crate::{AttachedDisk, IoContext, Node, testing};

const GRANULE: u64 = 512;
/// Granules of a disk that tests write to.
const GRANULES: u64 = (1 << 20) / GRANULE;

fn action(node: &Arc<Node>, bitmap: &str, change: BitmapChange) -> BitmapAction {
    BitmapAction {
        node: node.bitmaps().clone(),
        bitmap: bitmap.to_owned(),
        change,
    }
}

fn add_of_size(size: u64, enabled: bool) -> BitmapChange {
    BitmapChange::Add {
        size,
        granularity: GRANULE,
        enabled,
        persistent: false,
    }
}

fn add(node: &Arc<Node>, bitmap: &str, enabled: bool) -> BitmapAction {
    action(node, bitmap, add_of_size(node.size(), enabled))
}

/// A null disk whose routes record, with bitmaps of these names.
fn recording_null<const N: usize>(names: [&str; N]) -> Arc<Node> {
    let node = testing::null();
    node.bitmaps().let_new_routes_record(true);
    switch(&names.map(|name| add(&node, name, true))).unwrap();
    node
}

/// Writes a granule, and waits until it is complete.
fn write(io: &mut IoContext, disk: &AttachedDisk, granule: u64) {
    let data = vec![0; usize::try_from(GRANULE).unwrap()];
    testing::submit(io, disk, (Op::Write, granule * GRANULE), data, granule);
    testing::run_until_completed(io, 1);
}

/// The dirty granules of a bitmap.
fn dirty(node: &Arc<Node>, name: &str) -> Vec<u64> {
    let bitmap = node.bitmaps().begin_use(name).unwrap();
    let bits = bitmap.bits().unwrap();
    let ranges = bits.dirty_ranges();
    ranges
        .flat_map(|range| range.start / GRANULE..range.end / GRANULE)
        .collect()
}

/// A guest writes one granule after the other. At a moment, which takes a while, a bitmap stops to record.
#[test]
fn no_write_is_answered_between_a_switch_and_its_moment() {
    let node = recording_null(["now"]);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut io, disk) = testing::attached(&node);
            for granule in 0..GRANULES {
                write(&mut io, &disk, granule);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        let deadline = Deadline::default();
        while answered.load(Ordering::Relaxed) < 10 {
            // A pause would take as long as all writes.
            deadline.check("some writes");
            std::thread::yield_now();
        }
        let answered = || answered.load(Ordering::Relaxed);
        let (mut first, mut last) = (0, 0);
        let stops = action(&node, "now", BitmapChange::Enable(false));
        let switched = switch_with(&[stops], || {
            first = answered();
            std::thread::sleep(Duration::from_millis(20));
            last = answered();
        });
        switched.unwrap();
        let recorded = dirty(&node, "now").len() as u64;
        // One write may be recorded and not counted yet.
        let is_at_moment = |count| recorded == count || recorded == count + 1;
        assert!(
            is_at_moment(first) && is_at_moment(last),
            "{recorded} writes, and {first} to {last} are answered"
        );
    });
}

/// A guest writes to the second disk when it has got the completion of the first. The bitmaps of both are switched together.
#[test]
fn bitmaps_of_two_disks_are_switched_at_one_moment() {
    let nodes = [recording_null(["now"]), recording_null(["now"])];
    let mut totals = [0, 0];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut io = testing::io();
            let disks = nodes.each_ref().map(|node| testing::attach(&mut io, node));
            for granule in 0..GRANULES {
                for disk in &disks {
                    write(&mut io, disk, granule);
                }
            }
        });
        loop {
            let is_last = writer.is_finished();
            let mut actions = Vec::new();
            for node in &nodes {
                let source = vec![(node.bitmaps().clone(), "now".to_owned())];
                actions.push(add(node, "then", false));
                actions.push(action(node, "then", BitmapChange::Merge(source)));
                actions.push(action(node, "now", BitmapChange::Clear));
            }
            switch(&actions).unwrap();
            for (node, total) in nodes.iter().zip(&mut totals) {
                *total += dirty(node, "then").len() as u64;
            }
            let [first, second] = totals;
            assert!(
                second == first || second + 1 == first,
                "{first} writes of the first disk, {second} of the second"
            );
            let remove = |node| action(node, "then", BitmapChange::Remove);
            switch(&nodes.each_ref().map(remove)).unwrap();
            if is_last {
                break;
            }
            // The next switch would be ahead of requests that wait for this one.
            std::thread::yield_now();
        }
    });
    assert_eq!(totals, [GRANULES; 2]);
}

#[test]
fn an_action_that_is_not_possible_leaves_all_bitmaps_as_they_were() {
    let (node, other) = (recording_null(["a", "b"]), testing::null());
    let (mut io, disk) = testing::attached(&node);
    write(&mut io, &disk, 3);
    let before = node.bitmaps().statuses();
    let from_a = || BitmapChange::Merge(vec![(node.bitmaps().clone(), "a".to_owned())]);
    let clear_missing = action(&other, "a", BitmapChange::Clear);
    let abort = action(&node, "a", BitmapChange::Abort);
    let into_removed = action(&node, "new", from_a());
    for (last, error) in [
        (add(&node, "a", true), BitmapError::Exists("a".into())),
        (clear_missing, BitmapError::NotFound("a".into())),
        (abort, BitmapError::Aborted),
        (into_removed, BitmapError::Busy("new".into())),
    ] {
        let actions = [
            action(&node, "b", from_a()),
            action(&node, "a", BitmapChange::Clear),
            action(&node, "a", BitmapChange::Enable(false)),
            add(&node, "new", true),
            action(&node, "new", BitmapChange::Remove),
            last,
        ];
        assert_eq!(switch(&actions).map(drop), Err(error));
        assert_eq!(node.bitmaps().statuses(), before);
    }
    write(&mut io, &disk, 4);
    assert_eq!(dirty(&node, "a"), [3, 4], "it still records");
}

#[test]
fn a_bitmap_in_use_records_and_is_not_changed() {
    let node = recording_null(["a"]);
    let (mut io, disk) = testing::attached(&node);
    let bitmap = node.bitmaps().begin_use("a").unwrap();
    assert!(node.bitmaps().statuses()[0].busy);
    assert!(node.bitmaps().begin_use("a").is_err());
    for change in [
        BitmapChange::Clear,
        BitmapChange::Remove,
        BitmapChange::Enable(false),
    ] {
        let busy = Err(BitmapError::Busy("a".into()));
        assert_eq!(switch(&[action(&node, "a", change)]).map(drop), busy);
    }
    // One that the same switch adds, for a job that begins with it.
    let begin = action(&node, "new", BitmapChange::BeginSuccessor);
    let remove = action(&node, "new", BitmapChange::Remove);
    let refused = switch(&[add(&node, "new", true), begin, remove]).map(drop);
    assert_eq!(refused, Err(BitmapError::Busy("new".into())));
    write(&mut io, &disk, 1);
    drop(bitmap);
    assert_eq!(dirty(&node, "a"), [1]);
    switch(&[action(&node, "a", BitmapChange::Remove)]).unwrap();
    assert!(node.bitmaps().statuses().is_empty());
}

#[test]
fn routes_of_a_node_without_recording_bitmaps_have_no_marks() {
    let node = testing::null();
    let mut io = testing::io();
    let is_marked = |io: &mut IoContext, node: &Arc<Node>| {
        let disk = testing::attach(io, node);
        matches!(disk.route.write, crate::route::OpHandler::Marked(_))
    };
    switch(&[add(&node, "a", false)]).unwrap();
    assert!(!is_marked(&mut io, &node));
    node.bitmaps().let_new_routes_record(true);
    let window = testing::window(&node, 4096);
    for node in [&node, &window] {
        assert!(is_marked(&mut io, node));
    }
    node.bitmaps().let_new_routes_record(false);
    assert!(!is_marked(&mut io, &node));
}

/// Through a window; then the disk grows.
#[test]
fn a_write_through_a_window_and_a_new_end_are_recorded_below() {
    let node = recording_null(["a"]);
    let window = testing::window(&node, 4096);
    let (mut io, disk) = testing::attached(&window);
    write(&mut io, &disk, 1);
    assert_eq!(dirty(&node, "a"), [9]);
    node.record_new_size(node.size() + 2 * GRANULE);
    assert_eq!(dirty(&node, "a"), [9, GRANULES, GRANULES + 1]);
    write(&mut io, &disk, 5);
    assert_eq!(dirty(&node, "a"), [9, 13, GRANULES, GRANULES + 1]);
}

/// Each of them alone is allowed.
#[test]
fn bitmaps_of_one_switch_have_bounded_memory_together() {
    let node = recording_null([]);
    let add = |name, size| action(&node, name, add_of_size(size, true));
    let refused = switch(&[add("a", 4096), add("b", 1 << 42)]).map(drop);
    assert_eq!(refused, Err(BitmapError::TooLargeTogether((1 << 30) + 1)));
    assert_eq!(node.bitmaps().statuses(), []);
}

/// The bitmap may stop to record in the moment in which the job begins.
#[test]
fn a_job_knows_all_changes_since_it_has_begun_and_leaves_those_that_the_bitmap_records() {
    for (enabled, clears, expected) in [
        (true, true, &[1, 3, 4, 5][..]),
        (true, false, &[1, 2, 3, 4, 5]),
        (false, true, &[1]),
        (false, false, &[1, 2]),
    ] {
        let node = recording_null(["b"]);
        let (mut io, disk) = testing::attached(&node);
        write(&mut io, &disk, 1);
        write(&mut io, &disk, 2);
        let begin = [
            action(&node, "b", BitmapChange::Enable(enabled)),
            action(&node, "b", BitmapChange::BeginSuccessor),
        ];
        let used = switch(&begin).unwrap().remove(0);
        assert!(node.bitmaps().has_recording());
        write(&mut io, &disk, 3);
        let known = BitmapBits::new(node.size(), GRANULE).unwrap();
        used.mark_with_successor(&known).unwrap();
        assert_eq!(known.next_dirty(0, node.size()), Some(GRANULE..4 * GRANULE));
        assert_eq!(known.dirty_bytes(), 3 * GRANULE);
        write(&mut io, &disk, 4);
        let shown = node.bitmaps().statuses()[0].dirty_bytes;
        assert_eq!(shown, 2 * GRANULE, "what the job has begun with");
        // The first granule could not be copied.
        let not_copied = GRANULE..2 * GRANULE;
        match clears {
            true => used.end_successor(std::iter::once(not_copied)),
            false => drop(used),
        }
        write(&mut io, &disk, 5);
        let shown = node.bitmaps().statuses()[0].dirty_bytes;
        assert_eq!(shown, expected.len() as u64 * GRANULE);
        assert_eq!(dirty(&node, "b"), expected, "{enabled} {clears}");
        assert_eq!(node.bitmaps().has_recording(), enabled);
    }
}
