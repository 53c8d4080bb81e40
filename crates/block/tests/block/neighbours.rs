//! Tests of a greedy disk beside another one on the same iothread: what they share is not used up.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use block::{
    AttachedDisk, BackendSettings, DiskIo, LimitKind, Node, Op, RateLimit, Request, SourceIo,
    ThrottleGroup, ThrottleLimits,
};
use engine::PoolSettings;
use test_support::deadline::Deadline;

use crate::harness::{Call, Rig, first_sector};
use crate::storage::{cached, file, image, new_image, null, options, ring, tmpfs_folder, ways};

/// Submits reads until their source has no room, without a reap; how many.
fn read_until_full(rig: &mut Rig, disk: &AttachedDisk, source_index: u32) -> usize {
    let mut io = SourceIo {
        io: &mut rig.io,
        disks: std::slice::from_ref(disk),
        source_index,
        in_flight: 0,
    };
    let mut count = 0;
    while io.room(0) > 0 {
        // SAFETY: its memory is never freed.
        unsafe { io.submit(0, first_sector(Op::Read, count as u64)) };
        count += 1;
    }
    count
}

/// Requests hold their places until they are reaped, so a source without reaps has a disk that never answers.
#[test]
fn a_source_whose_disk_never_answers_leaves_places_to_others() {
    let (_folder, path) = new_image(1 << 20);
    let opened: [(&dyn Fn() -> Arc<Node>, usize); 3] = [
        (&|| file(&options(&path)), 64),
        (&|| file(&ring(options(&path))), 64),
        (&|| null(u64::MAX / 2, false), 1024),
    ];
    for (open, places) in opened {
        let mut rig = Rig::with_max_events(64);
        let disk = rig.attach(&open());
        let greedy = read_until_full(&mut rig, &disk, 1);
        assert_eq!(greedy, places * 7 / 8);
        let left = places - greedy;
        let later = read_until_full(&mut rig, &disk, 2);
        assert!((left / 2..left).contains(&later), "{later} of {left}");
        for source in 3..6 {
            let next = read_until_full(&mut rig, &disk, source);
            assert!(next > 0 || rig.io.room(&disk) == 0, "source {source}");
        }
    }
}

/// Blocking work for one disk, as long as the returned channels are open.
fn block_workers(rig: &mut Rig, disk: &AttachedDisk, count: u64) -> Vec<Sender<()>> {
    let block = |token| {
        let (release, until) = channel();
        let call = move || {
            let _ = until.recv();
            Ok(())
        };
        let disk = disk.number_among_workers();
        rig.io.submit_blocking_call(disk, Box::new(call), token);
        release
    };
    (0..count).map(block).collect()
}

/// Reads, unaligned writes, discards and flushes; on worker threads all of them, elsewhere those that need one.
#[test]
fn work_of_one_disk_that_never_ends_leaves_worker_threads_to_another() {
    let (_folder, path) = new_image(1 << 20);
    let (_other, greedy) = new_image(1 << 20);
    let greedy = file(&options(&greedy));
    for how in ways(&path) {
        let node = file(&how);
        let mut rig = Rig::new();
        let disk = rig.attach(&greedy);
        let releases = block_workers(&mut rig, &disk, 200);
        rig.ok(&node, Call::write(1536, &[7; 512]));
        assert_eq!(rig.read(&node, 1536, 512), [7; 512]);
        rig.ok(&node, Call::discard(0, 8192));
        rig.ok(&node, Call::flush());
        drop(releases);
        rig.run_until_completed(200);
    }
}

/// The kernel runs them in threads of its own, in the order of their submission. Further flushes go to workers, and ranges wait.
#[test]
fn flushes_and_ranges_of_a_ring_take_half_of_the_kernels_threads() {
    let (_folder, path) = new_image(1 << 20);
    let node = file(&ring(options(&path)));
    for op in [Op::Flush, Op::Discard, Op::WriteZeroes { unmap: false }] {
        let mut rig = Rig::with_settings(BackendSettings {
            pool: PoolSettings {
                max_threads: 8,
                ..PoolSettings::default()
            },
            ..BackendSettings::default()
        });
        let disk = rig.attach(&node);
        if rig.io.ring_stats().is_none() {
            return test_support::report::not_run("no io_uring");
        }
        for token in 0..20 {
            let request = Request::without_data(op, 0, 4096, token);
            // SAFETY: there are no segments.
            unsafe { rig.io.submit(&disk, request) }.unwrap();
        }
        rig.io.poll_tasks_and_submit();
        assert_eq!(rig.submitted(), 4, "{op:?}: half of the kernel's threads");
        let done = rig.run_until_completed(20);
        assert!(done.iter().all(|done| done.result == Ok(())), "{op:?}");
    }
}

/// What the submission of a small read costs its iothread.
fn cost_of_small_read(rig: &mut Rig, node: &Arc<Node>) -> u64 {
    let before = rig.io.submission_cost();
    rig.read(node, 0, 4096);
    rig.io.submission_cost() - before
}

/// So that turns are short while other queues wait. Through the page cache, and in memory, large copies are for workers then.
#[test]
fn requests_cost_more_and_large_copies_are_for_workers_if_the_iothread_has_other_files() {
    const LARGE: usize = 256 << 10;
    let (_folder, on_disk) = new_image(1 << 20);
    let (_other, other) = new_image(1 << 20);
    let Some(memory) = tmpfs_folder() else {
        return;
    };
    let in_memory = options(&image(&memory, "disk", 1 << 20));
    let other = file(&options(&other));
    for (how, copies) in [
        (options(&on_disk), false),
        (ring(options(&on_disk)), false),
        (ring(cached(&on_disk)), true),
        (in_memory, true),
    ] {
        let node = file(&how);
        let mut rig = Rig::new();
        let disk = rig.attach(&node);
        let on_the_iothread = |rig: &mut Rig, len| {
            let before = rig.submitted();
            rig.ok(&node, Call::write(0, &vec![7; len]));
            assert_eq!(rig.read(&node, 0, len), vec![7; len]);
            rig.submitted() - before
        };
        assert_eq!(on_the_iothread(&mut rig, LARGE), 2, "no other file");
        let alone = cost_of_small_read(&mut rig, &node);
        let other = rig.attach(&other);
        // In memory: as long as the disk answers at once, which it seems not to do while the machine is busy.
        let deadline = Deadline::default();
        while cost_of_small_read(&mut rig, &node) < alone + 32 * 1024
            || copies && on_the_iothread(&mut rig, LARGE) > 0
        {
            deadline.check("small reads cost more, and workers carry large copies");
            for _ in 0..100 {
                rig.read(&node, 0, 4096);
            }
        }
        assert_eq!(on_the_iothread(&mut rig, LARGE / 2), 2, "not large");
        rig.io.detach(other);
        assert_eq!(on_the_iothread(&mut rig, LARGE), 2);
        rig.io.detach(disk);
    }
}

/// They wait for a limit, which is then removed, and hold their places until they are reaped.
#[test]
fn requests_that_have_waited_leave_places_to_other_disks() {
    let (_folder, path) = new_image(1 << 20);
    let (_other, other) = new_image(1 << 20);
    for how in [
        |path: &Path| options(path),
        |path: &Path| ring(options(path)),
    ] {
        let mut limits = ThrottleLimits::default();
        *limits.rate_mut(LimitKind::IopsTotal) = RateLimit::of(1);
        let group = ThrottleGroup::new("group", limits);
        let greedy = Node::new_throttle("greedy", &file(&how(&path)), &group, false, true);
        let mut rig = Rig::with_max_events(64);
        let (disk, other) = (rig.attach(&greedy), rig.attach(&file(&how(&other))));
        for number in 0..200 {
            rig.submit(&disk, Op::Read, number);
        }
        rig.io.poll_tasks_and_submit();
        let before = rig.submitted();
        group.set_limits(ThrottleLimits::default());
        for _ in 0..5 {
            rig.io.poll_tasks_and_submit();
        }
        assert!(rig.submitted() > before + 40, "most have passed");
        assert!(read_until_full(&mut rig, &other, 2) >= 4);
        rig.run_until_completed(200);
    }
}
