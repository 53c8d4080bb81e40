//! Tests with iothreads that write while bitmaps are switched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine::Op;

use super::{
    BitmapAction, BitmapBits, BitmapChange, BitmapError, NodeBitmaps, switch, switch_with,
};
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

fn add(node: &Arc<Node>, bitmap: &str, enabled: bool) -> BitmapAction {
    let add = BitmapChange::Add {
        size: node.size(),
        granularity: GRANULE,
        enabled,
        persistent: false,
    };
    action(node, bitmap, add)
}

/// A null disk whose routes record.
fn recording_null() -> Arc<Node> {
    let node = testing::null();
    node.bitmaps().let_new_routes_record(true);
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

fn status(bitmaps: &Arc<NodeBitmaps>, name: &str) -> super::BitmapStatus {
    let mut statuses = bitmaps.statuses().into_iter();
    statuses.find(|status| status.name == name).unwrap()
}

/// Four threads write each granule once. Meanwhile one bitmap after the other records.
#[test]
fn each_write_is_in_exactly_one_of_two_bitmaps_that_are_switched() {
    let node = recording_null();
    switch(&[add(&node, "0", true)]).unwrap();
    let done = AtomicBool::new(false);
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|first| {
                let node = &node;
                scope.spawn(move || {
                    let mut io = testing::io();
                    let disk = testing::attach(&mut io, node);
                    for granule in (first..GRANULES).step_by(4) {
                        write(&mut io, &disk, granule);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            writers.into_iter().for_each(|it| it.join().unwrap());
            done.store(true, Ordering::SeqCst);
        });
        for turn in 0.. {
            let is_last = done.load(Ordering::SeqCst);
            let (old, new) = (turn.to_string(), (turn + 1).to_string());
            let disable = action(&node, &old, BitmapChange::Enable(false));
            switch(&[disable, add(&node, &new, true)]).unwrap();
            found.extend(dirty(&node, &old));
            switch(&[action(&node, &old, BitmapChange::Remove)]).unwrap();
            if is_last {
                break;
            }
            // The next switch would be ahead of requests that wait for this one.
            std::thread::yield_now();
        }
    });
    found.sort_unstable();
    assert!(found.iter().copied().eq(0..GRANULES), "{found:?}");
}

/// A guest writes one granule after the other. At a moment, which takes a while, a bitmap stops to record.
#[test]
fn no_write_is_answered_between_a_switch_and_its_moment() {
    let node = recording_null();
    switch(&[add(&node, "now", true)]).unwrap();
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut io = testing::io();
            let disk = testing::attach(&mut io, &node);
            for granule in 0..GRANULES {
                write(&mut io, &disk, granule);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        while answered.load(Ordering::Relaxed) < 10 {
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
    let nodes = [recording_null(), recording_null()];
    switch(&nodes.each_ref().map(|node| add(node, "now", true))).unwrap();
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
            switch(
                &nodes
                    .each_ref()
                    .map(|node| action(node, "then", BitmapChange::Remove)),
            )
            .unwrap();
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
    let (node, other) = (recording_null(), recording_null());
    switch(&[add(&node, "a", true), add(&node, "b", false)]).unwrap();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &node);
    write(&mut io, &disk, 3);
    let before = node.bitmaps().statuses();
    let from_a = || BitmapChange::Merge(vec![(node.bitmaps().clone(), "a".to_owned())]);
    let impossible = [
        (add(&node, "a", true), BitmapError::Exists("a".into())),
        (
            action(&other, "a", BitmapChange::Clear),
            BitmapError::NotFound("a".into()),
        ),
        (
            action(&node, "a", BitmapChange::Abort),
            BitmapError::Aborted,
        ),
        (
            action(&node, "new", from_a()),
            BitmapError::Busy("new".into()),
        ),
    ];
    for (last, error) in impossible {
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
    let node = recording_null();
    switch(&[add(&node, "a", true)]).unwrap();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &node);
    let bitmap = node.bitmaps().begin_use("a").unwrap();
    assert!(status(node.bitmaps(), "a").busy);
    assert!(node.bitmaps().begin_use("a").is_err());
    for change in [
        BitmapChange::Clear,
        BitmapChange::Remove,
        BitmapChange::Enable(false),
    ] {
        let busy = Err(BitmapError::Busy("a".into()));
        assert_eq!(switch(&[action(&node, "a", change)]).map(drop), busy);
    }
    write(&mut io, &disk, 1);
    let extents = bitmap.extents(0..3 * GRANULE, 9).unwrap();
    let lens = extents.iter().map(|extent| (extent.len, extent.dirty));
    assert!(lens.eq([false, true, false].map(|dirty| (GRANULE, dirty))));
    drop(bitmap);
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
    let window = Node::new_window("window", &node, 4096, None, false, true).unwrap();
    for node in [&node, &window] {
        assert!(is_marked(&mut io, node));
    }
    node.bitmaps().let_new_routes_record(false);
    assert!(!is_marked(&mut io, &node));
}

/// Through a window; then the disk grows.
#[test]
fn a_write_through_a_window_and_a_new_end_are_recorded_below() {
    let node = recording_null();
    let window = Node::new_window("window", &node, 4096, None, false, true).unwrap();
    switch(&[add(&node, "a", true)]).unwrap();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &window);
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
    let node = recording_null();
    let add_of_size = |name: &str, size| {
        let change = BitmapChange::Add {
            size,
            granularity: 512,
            enabled: true,
            persistent: false,
        };
        action(&node, name, change)
    };
    let (small, large) = (add_of_size("a", 4096), add_of_size("b", 1 << 42));
    let refused = switch(&[small, large]).map(drop);
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
        let node = recording_null();
        let mut io = testing::io();
        let disk = testing::attach(&mut io, &node);
        switch(&[add(&node, "b", true)]).unwrap();
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

#[test]
fn a_bitmap_that_a_job_begins_to_use_is_changed_by_earlier_actions_only() {
    let node = recording_null();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &node);
    switch(&[add(&node, "b", true), add(&node, "other", true)]).unwrap();
    write(&mut io, &disk, 1);
    let begin = |name| action(&node, name, BitmapChange::BeginSuccessor);
    for name in ["b", "new"] {
        let merge = BitmapChange::Merge(vec![(node.bitmaps().clone(), name.to_owned())]);
        for later in [
            begin(name),
            action(&node, name, BitmapChange::Clear),
            action(&node, name, BitmapChange::Remove),
            action(&node, name, BitmapChange::Enable(false)),
            action(&node, "other", merge),
        ] {
            let mut actions = vec![begin(name), later];
            if name == "new" {
                actions.insert(0, add(&node, name, true));
            }
            let refused = switch(&actions).map(drop);
            assert_eq!(refused, Err(BitmapError::Busy(name.to_owned())));
            assert_eq!(dirty(&node, "b"), [1]);
        }
    }
    let used = switch(&[action(&node, "b", BitmapChange::Clear), begin("b")]).unwrap();
    assert_eq!(used.len(), 1);
    let known = BitmapBits::new(node.size(), GRANULE).unwrap();
    used[0].mark_with_successor(&known).unwrap();
    assert_eq!(known.dirty_bytes(), 0);
}
