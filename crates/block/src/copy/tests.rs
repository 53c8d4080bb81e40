//! Copies as of one moment, while other iothreads write.

mod limited;
mod long_ranges;
mod snapshot;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{Errno, Op};

use super::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyExtent, CopyFailure, CopyMoment, CopySide, MIN_CLUSTER_BYTES,
};
use crate::{
    Aio, AttachedDisk, FaultAction, FaultRule, FaultRules, Faults, IoContext, Node, testing,
};

const CLUSTERS: u64 = 16;
const BYTES: usize = 1 << 20;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = BYTES as u64 / BLOCK;

/// A source full of 7, a target of zeroes, and a copy of the one to the other.
struct Rig {
    folder: tempfile::TempDir,
    source: Arc<Node>,
    target: Arc<Node>,
    copy: Arc<BlockCopy>,
    moment: Arc<CopyMoment>,
    failures: Arc<Mutex<Vec<CopyFailure>>>,
}

impl Rig {
    fn new(aio: Aio) -> Self {
        Self::with_nodes(aio, CopyExtent::All, |source, target| (source, target))
    }

    /// With filters in front of the files.
    fn with_nodes(
        aio: Aio,
        extent: CopyExtent,
        filter: impl FnOnce(Arc<Node>, Arc<Node>) -> (Arc<Node>, Arc<Node>),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, byte| testing::file(&folder.path().join(name), &[byte; BYTES], aio);
        let (source, target) = filter(file("source", 7), file("target", 0));
        let moment = Arc::new(CopyMoment::default());
        let failures: Arc<Mutex<Vec<_>>> = Arc::default();
        let failed = failures.clone();
        let on_failed = move |failure| failed.lock().unwrap().push(failure);
        let copy = BlockCopy::new(
            source.size(),
            MIN_CLUSTER_BYTES,
            moment.clone(),
            extent,
            on_failed,
        );
        let copy = copy.unwrap();
        source.set_copy_before_write(&copy, &target);
        Rig {
            folder,
            source,
            target,
            copy,
            moment,
            failures,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    fn copier(&self, io: &mut IoContext) -> AttachedDisk {
        let node = Node::new_copier("copier", &self.source, &self.target, &self.copy);
        testing::attach(io, &node)
    }
}

/// A filter with one rule for writes.
fn fault(below: &Arc<Node>, action: FaultAction) -> (Arc<Node>, Arc<Faults>) {
    fault_in(below, None, action)
}

/// The same in a range.
fn fault_in(
    below: &Arc<Node>,
    bytes: Option<std::ops::Range<u64>>,
    action: FaultAction,
) -> (Arc<Node>, Arc<Faults>) {
    fault_of(below, Op::Write, bytes, action)
}

/// The same for other requests.
fn fault_of(
    below: &Arc<Node>,
    op: Op,
    bytes: Option<std::ops::Range<u64>>,
    action: FaultAction,
) -> (Arc<Node>, Arc<Faults>) {
    let rule = FaultRule {
        begins: None,
        op: Some(op),
        bytes,
        times: None,
        one_in: 1,
        action,
    };
    let rules = FaultRules {
        rules: vec![rule],
        seed: 1,
    };
    let faults = Faults::new(rules);
    let filter = Node::new_filter("filter", below, faults.clone(), false, true);
    (filter, faults)
}

fn write(io: &mut IoContext, disk: &AttachedDisk, offset: u64, byte: u8) {
    testing::submit(io, disk, (Op::Write, offset), vec![byte; 4096], 1);
    let done = testing::run_until_completed(io, 1);
    assert_eq!(done[0].result, Ok(()));
}

/// Requests of the copier have a length without data.
fn submit_copy(io: &mut IoContext, disk: &AttachedDisk, op: Op, offset: u64, len: u64) {
    let request = crate::Request::without_data(op, offset, len, 9);
    // SAFETY: there is no memory.
    unsafe { io.submit(disk, request) }.unwrap();
}

fn copy_all(rig: &Rig) {
    let mut io = testing::io();
    let copier = rig.copier(&mut io);
    submit_copy(&mut io, &copier, Op::Read, 0, BYTES as u64);
    let done = testing::run_until_completed(&mut io, 1);
    assert_eq!(done[0].result, Ok(()));
    io.detach(copier);
}

#[test]
fn a_write_after_the_moment_copies_the_old_clusters_first() {
    for aio in [Aio::Threads, Aio::IoUring] {
        let rig = Rig::new(aio);
        let mut io = testing::io();
        let disk = testing::attach(&mut io, &rig.source);
        write(&mut io, &disk, 0, 1);
        assert_eq!(rig.copy.copied_bytes(), 0, "the moment has not come");
        rig.moment.begin();
        // It touches two clusters.
        let offset = 2 * MIN_CLUSTER_BYTES - 2048;
        write(&mut io, &disk, offset, 2);
        write(&mut io, &disk, offset, 3);
        assert_eq!(rig.copy.copied_bytes(), 2 * MIN_CLUSTER_BYTES);
        let mut expected = vec![0; BYTES];
        let cluster = usize::try_from(MIN_CLUSTER_BYTES).unwrap();
        expected[cluster..3 * cluster].fill(7);
        assert!(rig.content("target") == expected);
        copy_all(&rig);
        expected.fill(7);
        expected[..4096].fill(1);
        assert!(rig.content("target") == expected);
        assert_eq!(rig.copy.pending_bytes(), 0);
        io.detach(disk);
    }
}

/// As much is copied behind the first one again as was copied before it, but only up to the end of a large cluster.
#[test]
fn writes_in_sequence_copy_more_and_more_ahead() {
    let rig = Rig::new(Aio::Threads);
    rig.moment.begin();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    let copied: Vec<u64> = (0..18)
        .map(|block| {
            write(&mut io, &disk, block * BLOCK, 1);
            rig.copy.copied_bytes() / BLOCK
        })
        .collect();
    assert_eq!(
        copied,
        [
            1, 3, 3, 6, 6, 6, 11, 11, 11, 11, 11, 16, 16, 16, 16, 16, 32, 32
        ]
    );
    copy_all(&rig);
    assert!(rig.content("target") == [7; BYTES]);
}

/// The write of its old data to the target hangs.
#[test]
fn a_write_waits_for_its_copy_only_if_others_read_the_target() {
    for (extent, byte) in [(CopyExtent::All, 1), (CopyExtent::Changes, 7)] {
        let mut faults = None;
        let rig = Rig::with_nodes(Aio::Threads, extent, |source, target| {
            let (target, hang) = fault(&target, FaultAction::Hang);
            faults = Some(hang);
            (source, target)
        });
        let faults = faults.unwrap();
        rig.moment.begin();
        let mut io = testing::io();
        let disk = testing::attach(&mut io, &rig.source);
        testing::submit(&mut io, &disk, (Op::Write, 0), vec![1; 4096], 1);
        let mut done = Vec::new();
        let mut poll = || {
            io.poll_tasks_and_submit();
            io.reap_and_poll_tasks(&mut done);
        };
        match extent {
            CopyExtent::Changes => (0..100).for_each(|_| {
                std::thread::sleep(Duration::from_millis(1));
                poll();
            }),
            _ => {
                let begin = Instant::now();
                while rig.content("source")[..4096] != [1; 4096] {
                    assert!(begin.elapsed() < Duration::from_secs(60), "not begun");
                    poll();
                }
            }
        }
        assert!(rig.content("source")[..4096] == [byte; 4096], "{extent:?}");
        assert_eq!((done, rig.copy.copied_bytes()), (Vec::new(), 0));
        let _no_hang = faults.release_and_prevent_hangs();
        testing::run_until_completed(&mut io, 1);
        assert!(rig.content("source")[..4096] == [1; 4096]);
        assert!(rig.content("target")[..4096] == [7; 4096]);
    }
}

/// Units of a terabyte take 32 MiB, and those of a larger disk no more.
#[test]
fn units_are_small_unless_a_disk_has_too_many() {
    let unit = super::backup_cluster_bytes;
    assert_eq!([unit(1, 512), unit(1 << 40, 4096)], [MIN_CLUSTER_BYTES; 2]);
    assert_eq!(unit((1 << 40) + 1, 512), 2 * MIN_CLUSTER_BYTES);
    assert_eq!(
        [unit(1 << 44, 1), unit(1 << 60, 1)],
        [COPY_CLUSTER_BYTES; 2]
    );
    assert_eq!(unit(1, 8192), 8192, "a whole block");
}

#[test]
fn zeroes_and_discards_after_the_moment_copy_the_old_clusters_first() {
    let rig = Rig::new(Aio::Threads);
    rig.moment.begin();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    submit_copy(&mut io, &disk, Op::WriteZeroes { unmap: true }, 0, 1 << 18);
    submit_copy(&mut io, &disk, Op::Discard, 1 << 18, 1 << 18);
    testing::run_until_completed(&mut io, 2);
    assert_eq!(rig.copy.copied_bytes(), 1 << 19);
    assert!(
        rig.content("target")[..1 << 19]
            .iter()
            .all(|byte| *byte == 7)
    );
}

/// It is delayed below the filter, and copied by another iothread meanwhile.
#[test]
fn a_write_before_the_moment_is_copied_when_it_has_ended() {
    let mut faults = None;
    let rig = Rig::with_nodes(Aio::Threads, CopyExtent::All, |source, target| {
        let (filter, hang) = fault(&source, FaultAction::Hang);
        faults = Some(hang);
        (filter, target)
    });
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    testing::submit(&mut io, &disk, (Op::Write, 0), vec![1; 4096], 1);
    io.poll_tasks_and_submit();
    rig.moment.begin();
    let mut other = testing::io();
    let copier = rig.copier(&mut other);
    submit_copy(&mut other, &copier, Op::Read, 0, COPY_CLUSTER_BYTES);
    let mut done = Vec::new();
    for _ in 0..100 {
        other.poll_tasks_and_submit();
        other.reap_and_poll_tasks(&mut done);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(done, [], "the write has not ended");
    faults.unwrap().release_hanging_and_set_rules(None);
    testing::run_until_completed(&mut io, 1);
    testing::run_until_completed(&mut other, 1);
    assert_eq!(rig.content("target")[..4096], [1; 4096]);
}

/// Two iothreads write numbered blocks in order, a third one copies: the target has all writes of each up to some number.
#[test]
fn a_copy_has_all_writes_up_to_one_moment_and_none_of_later_ones() {
    for round in 0..8 {
        let rig = Rig::new(Aio::Threads);
        let (end, written) = (AtomicBool::new(false), AtomicU32::new(0));
        let logs: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u64)
                .map(|writer| {
                    let (rig, end, written) = (&rig, &end, &written);
                    scope.spawn(move || {
                        let mut io = testing::io();
                        let disk = testing::attach(&mut io, &rig.source);
                        let mut blocks = Vec::new();
                        while !end.load(Ordering::Relaxed) {
                            let number = blocks.len() as u64 + 1;
                            // Each has blocks of its own, beside those of the other one.
                            let block =
                                number.wrapping_mul(0x9e37_79b9) % (BLOCKS / 2) * 2 + writer;
                            let data = number.to_ne_bytes().repeat(512);
                            testing::submit(&mut io, &disk, (Op::Write, block * BLOCK), data, 1);
                            let done = testing::run_until_completed(&mut io, 1);
                            assert_eq!(done[0].result, Ok(()));
                            blocks.push(block);
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                        blocks
                    })
                })
                .collect();
            while written.load(Ordering::Relaxed) < 50 + 100 * round {
                std::thread::yield_now();
            }
            rig.moment.begin();
            let mut io = testing::io();
            let copier = rig.copier(&mut io);
            for cluster in (0..CLUSTERS).rev() {
                let at = cluster * COPY_CLUSTER_BYTES;
                submit_copy(&mut io, &copier, Op::Read, at, COPY_CLUSTER_BYTES);
                testing::run_until_completed(&mut io, 1);
            }
            end.store(true, Ordering::Relaxed);
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .collect()
        });
        assert_eq!(rig.copy.pending_bytes(), 0);
        let target = rig.content("target");
        for (writer, blocks) in (0..).zip(&logs) {
            assert_contains_a_prefix(&target, writer, blocks);
        }
    }
}

/// `blocks` were written in this order.
fn assert_contains_a_prefix(target: &[u8], writer: u64, blocks: &[u64]) {
    let number_in = |block: u64| {
        let at = usize::try_from(block * BLOCK).unwrap();
        let bytes = &target[at..at + 4096];
        let number = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
        assert!(bytes.chunks(8).all(|chunk| chunk == &bytes[..8]), "torn");
        if number == 0x0707_0707_0707_0707 {
            0
        } else {
            number
        }
    };
    let last = (0..BLOCKS / 2)
        .map(|pair| number_in(pair * 2 + writer))
        .max();
    let mut expected = std::collections::HashMap::new();
    for (number, block) in (1..=last.unwrap()).zip(blocks) {
        expected.insert(*block, number);
    }
    for pair in 0..BLOCKS / 2 {
        let block = pair * 2 + writer;
        assert_eq!(number_in(block), expected.get(&block).copied().unwrap_or(0));
    }
}

#[test]
fn a_write_whose_copy_fails_succeeds_and_ends_the_copy() {
    let rig = Rig::with_nodes(Aio::Threads, CopyExtent::All, |source, target| {
        let (target, _) = fault(&target, FaultAction::Error(Errno::NOSPC));
        (source, target)
    });
    rig.moment.begin();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    write(&mut io, &disk, 0, 1);
    write(&mut io, &disk, 1 << 19, 1);
    let failure = CopyFailure {
        side: CopySide::Target,
        errno: Errno::NOSPC,
    };
    assert_eq!(*rig.failures.lock().unwrap(), [failure]);
    assert_eq!(rig.copy.copied_bytes(), 0);
}

#[test]
fn the_copier_learns_which_disk_has_failed() {
    let rig = Rig::with_nodes(Aio::Threads, CopyExtent::All, |source, target| {
        let (target, _) = fault(&target, FaultAction::Error(Errno::NOSPC));
        (source, target)
    });
    rig.moment.begin();
    let mut io = testing::io();
    let copier = rig.copier(&mut io);
    submit_copy(&mut io, &copier, Op::Read, 1 << 16, 1 << 16);
    let done = testing::run_until_completed(&mut io, 1);
    assert_eq!(done[0].result, Err(Errno::NOSPC));
    assert_eq!(rig.copy.take_failed_side(1 << 16), Some(CopySide::Target));
    assert_eq!(rig.copy.pending_bytes(), BYTES as u64);
}

#[test]
fn a_copy_of_dirty_clusters_leaves_the_others_alone() {
    let rig = Rig::with_nodes(Aio::Threads, CopyExtent::Dirty, |source, target| {
        (source, target)
    });
    rig.moment.begin();
    rig.copy.limit_to_dirty(|wanted| {
        wanted.mark(70_000..70_001);
        wanted.mark(BYTES as u64 - 1..BYTES as u64);
    });
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    write(&mut io, &disk, 0, 1);
    assert_eq!(rig.copy.copied_bytes(), 0);
    assert_eq!(rig.copy.pending_bytes(), 2 * MIN_CLUSTER_BYTES);
    copy_all(&rig);
    let mut expected = vec![0; BYTES];
    let cluster = usize::try_from(MIN_CLUSTER_BYTES).unwrap();
    expected[17 * cluster..18 * cluster].fill(7);
    expected[BYTES - cluster..].fill(7);
    assert!(rig.content("target") == expected);
}

#[test]
fn zeroes_of_the_source_take_no_space_in_the_target() {
    let rig = Rig::new(Aio::Threads);
    std::fs::write(rig.path("source"), vec![0; BYTES]).unwrap();
    std::fs::File::create(rig.path("target"))
        .unwrap()
        .set_len(BYTES as u64)
        .unwrap();
    rig.moment.begin();
    copy_all(&rig);
    assert_eq!(rig.target.allocated_bytes(), Some(0));
}

#[test]
fn a_disk_without_a_copy_has_the_routes_of_before() {
    let rig = Rig::new(Aio::Threads);
    rig.source.remove_copy_filter();
    rig.moment.begin();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    write(&mut io, &disk, 0, 1);
    assert_eq!(rig.copy.copied_bytes(), 0);
}
