//! Copies as of one moment.

mod limited;
mod long_ranges;
mod snapshot;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use engine::{Errno, Op};

use super::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyExtent, CopyFailure, CopyMoment, CopySide,
    MIN_CLUSTER_BYTES, MirrorMode,
};
use crate::dirty_bitmap::BitmapError;
use crate::testing::{attach, run_until_completed, run_until_idle, submit, submit_range, write};
use crate::{Aio, AttachedDisk, FaultAction, FaultRule, Faults, IoContext, Node, testing};

pub(super) const BYTES: usize = 1 << 20;
const BLOCK: u64 = 4096;

/// A source full of 7, a target of zeroes, and a copy of the one to the other.
pub(super) struct Rig {
    folder: tempfile::TempDir,
    pub source: Arc<Node>,
    pub target: Arc<Node>,
    pub copy: Arc<BlockCopy>,
    moment: Arc<CopyMoment>,
    /// Of filters in front of source and target, without rules at first.
    faults: [Arc<Faults>; 2],
    pub failures: Arc<Mutex<Vec<CopyFailure>>>,
}

type OnFailed = Box<dyn Fn(CopyFailure) + Send + Sync>;

impl Rig {
    fn new(
        (aio, bytes, has_filters): (Aio, usize, bool),
        new_copy: impl FnOnce(u64, OnFailed) -> Result<Arc<BlockCopy>, BitmapError>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let faults = [(); 2].map(|()| Faults::new(testing::rules([])));
        let [source, target] = [("source", 7, 0), ("target", 0, 1)].map(|(name, byte, index)| {
            let file = testing::file(&folder.path().join(name), &vec![byte; bytes], aio);
            match has_filters {
                true => Node::new_filter("filter", &file, faults[index].clone(), false, true),
                false => file,
            }
        });
        let failures: Arc<Mutex<Vec<_>>> = Arc::default();
        let failed = failures.clone();
        let on_failed = Box::new(move |failure| failed.lock().unwrap().push(failure));
        Rig {
            folder,
            copy: new_copy(source.size(), on_failed).unwrap(),
            source,
            target,
            moment: Arc::default(),
            faults,
            failures,
        }
    }

    fn new_backup(disks: (Aio, usize, bool), extent: CopyExtent) -> Self {
        let moment = Arc::new(CopyMoment::default());
        let rig = Self::new(disks, |size, on_failed| {
            BlockCopy::new(size, MIN_CLUSTER_BYTES, moment.clone(), extent, on_failed)
        });
        rig.source.set_copy_before_write(&rig.copy, &rig.target);
        Rig { moment, ..rig }
    }

    /// A backup of a file to another one, without filters.
    fn of_files(aio: Aio) -> Self {
        Self::new_backup((aio, BYTES, false), CopyExtent::All)
    }

    fn backup(extent: CopyExtent) -> Self {
        Self::new_backup((Aio::Threads, BYTES, true), extent)
    }

    /// A mirror; the target may be known to have only zeroes.
    pub fn mirror(mode: MirrorMode, target_is_zero: bool) -> Self {
        let rig = Self::new((Aio::Threads, BYTES, true), |size, on_failed| {
            BlockCopy::new_mirror(size, target_is_zero, on_failed)
        });
        rig.source.set_mirror(&rig.copy, &rig.target, mode);
        rig
    }

    /// Lets requests to one of the disks fail, or be slow, from now on. What hangs is released.
    pub fn set_faults<const N: usize>(&self, disk: usize, rules: [FaultRule; N]) {
        self.faults[disk].release_hanging_and_set_rules(Some(testing::rules(rules)));
    }

    pub fn set_fault(&self, disk: usize, op: Op, action: FaultAction) {
        self.set_faults(disk, [testing::fault(Some(op), action)]);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn copier(&self, io: &mut IoContext) -> AttachedDisk {
        let node = Node::new_copier("copier", &self.source, &self.target, &self.copy);
        attach(io, &node)
    }

    pub fn try_copy(&self, range: std::ops::Range<u64>) -> Result<(), Errno> {
        let mut io = testing::io();
        let copier = self.copier(&mut io);
        submit_range(&mut io, &copier, Op::Read, range);
        let done = run_until_completed(&mut io, 1);
        io.detach(copier);
        done[0].result
    }

    pub fn copy_all(&self) {
        assert_eq!(self.try_copy(0..self.source.size()), Ok(()));
    }
}

#[test]
fn a_write_after_the_moment_copies_the_old_clusters_first() {
    for aio in [Aio::Threads, Aio::IoUring] {
        let rig = Rig::of_files(aio);
        let (mut io, disk) = testing::attached(&rig.source);
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
        rig.copy_all();
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
    let rig = Rig::of_files(Aio::Threads);
    rig.moment.begin();
    let (mut io, disk) = testing::attached(&rig.source);
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
    rig.copy_all();
    assert!(rig.content("target") == [7; BYTES]);
}

#[test]
fn copying_ahead_of_writes_in_sequence_ends_with_the_disk() {
    const BLOCKS: u64 = 18;
    let bytes = usize::try_from(BLOCKS * BLOCK).unwrap();
    let rig = Rig::new_backup((Aio::Threads, bytes, false), CopyExtent::All);
    rig.moment.begin();
    let (mut io, disk) = testing::attached(&rig.source);
    for block in 0..BLOCKS {
        write(&mut io, &disk, block * BLOCK, 1);
    }
    assert!(rig.failures.lock().unwrap().is_empty());
    assert!(rig.content("target") == vec![7; bytes]);
}

/// The write of its old data to the target hangs.
#[test]
fn a_write_waits_for_its_copy_only_if_others_read_the_target() {
    for (extent, byte) in [(CopyExtent::All, 1), (CopyExtent::Changes, 7)] {
        let rig = Rig::backup(extent);
        rig.set_fault(1, Op::Write, FaultAction::Hang);
        rig.moment.begin();
        let (mut io, disk) = testing::attached(&rig.source);
        submit(&mut io, &disk, (Op::Write, 0), vec![1; 4096], 1);
        let done = run_until_idle(&mut io);
        assert!(rig.content("source")[..4096] == [byte; 4096], "{extent:?}");
        assert_eq!((done, rig.copy.copied_bytes()), (Vec::new(), 0));
        rig.set_faults(1, []);
        run_until_completed(&mut io, 1);
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
    let rig = Rig::of_files(Aio::Threads);
    rig.moment.begin();
    let (mut io, disk) = testing::attached(&rig.source);
    let zeroes = Op::WriteZeroes { unmap: true };
    submit_range(&mut io, &disk, zeroes, 0..1 << 18);
    submit_range(&mut io, &disk, Op::Discard, 1 << 18..1 << 19);
    run_until_completed(&mut io, 2);
    assert_eq!(rig.copy.copied_bytes(), 1 << 19);
    assert!(rig.content("target")[..1 << 19] == [7; 1 << 19]);
}

/// It is delayed below the filter, and copied by another iothread meanwhile.
#[test]
fn a_write_before_the_moment_is_copied_when_it_has_ended() {
    let rig = Rig::backup(CopyExtent::All);
    rig.set_fault(0, Op::Write, FaultAction::Hang);
    let (mut io, mut other) = (testing::io(), testing::io());
    let disk = attach(&mut io, &rig.source);
    submit(&mut io, &disk, (Op::Write, 0), vec![1; 4096], 1);
    io.poll_tasks_and_submit();
    rig.moment.begin();
    let copier = rig.copier(&mut other);
    submit_range(&mut other, &copier, Op::Read, 0..COPY_CLUSTER_BYTES);
    assert_eq!(run_until_idle(&mut other), [], "the write has not ended");
    rig.set_faults(0, []);
    run_until_completed(&mut io, 1);
    run_until_completed(&mut other, 1);
    assert_eq!(rig.content("target")[..4096], [1; 4096]);
}

/// Of a window, a filter, and the files below: the topmost task reserves memory for all of them.
#[test]
fn a_write_that_two_backups_copy_before_has_memory_for_both() {
    let rig = Rig::of_files(Aio::Threads);
    let (size, moment) = (rig.source.size(), rig.moment.clone());
    let copy = BlockCopy::new(size, MIN_CLUSTER_BYTES, moment, CopyExtent::All, |_| ());
    let target = testing::file(&rig.path("other"), &[0; BYTES], Aio::Threads);
    let filter = testing::filter(&rig.source, []);
    filter.set_copy_before_write(&copy.unwrap(), &target);
    rig.moment.begin();
    let (mut io, disk) = testing::attached(&testing::window(&filter, BLOCK));
    submit(&mut io, &disk, (Op::Write, 512), vec![9; 8192], 1);
    assert_eq!(run_until_completed(&mut io, 1)[0].result, Ok(()));
    let (mut written, mut copied) = (vec![7; BYTES], vec![0; BYTES]);
    written[4096 + 512..][..8192].fill(9);
    copied[4096..4 * 4096].fill(7);
    assert!(rig.content("source") == written);
    assert!(rig.content("target") == copied && rig.content("other") == copied);
}

#[test]
fn a_write_whose_copy_fails_succeeds_and_ends_the_copy() {
    let rig = Rig::backup(CopyExtent::All);
    rig.set_fault(1, Op::Write, FaultAction::Error(Errno::NOSPC));
    rig.moment.begin();
    // The copier's job decides about its own errors.
    assert_eq!(rig.try_copy(1 << 16..1 << 17), Err(Errno::NOSPC));
    assert_eq!(rig.copy.take_failed_side(1 << 16), Some(CopySide::Target));
    assert_eq!(rig.copy.pending_bytes(), BYTES as u64);
    let (mut io, disk) = testing::attached(&rig.source);
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
fn a_copy_of_dirty_clusters_leaves_the_others_alone() {
    let rig = Rig::backup(CopyExtent::Dirty);
    rig.moment.begin();
    rig.copy.limit_to_dirty(|wanted| {
        wanted.mark(70_000..70_001);
        wanted.mark(BYTES as u64 - 1..BYTES as u64);
    });
    let (mut io, disk) = testing::attached(&rig.source);
    write(&mut io, &disk, 0, 1);
    assert_eq!(rig.copy.copied_bytes(), 0);
    assert_eq!(rig.copy.pending_bytes(), 2 * MIN_CLUSTER_BYTES);
    rig.copy_all();
    let mut expected = vec![0; BYTES];
    let cluster = usize::try_from(MIN_CLUSTER_BYTES).unwrap();
    expected[17 * cluster..18 * cluster].fill(7);
    expected[BYTES - cluster..].fill(7);
    assert!(rig.content("target") == expected);
}

#[test]
fn zeroes_of_the_source_take_no_space_in_the_target() {
    let rig = Rig::of_files(Aio::Threads);
    std::fs::write(rig.path("source"), vec![0; BYTES]).unwrap();
    let target = std::fs::File::create(rig.path("target")).unwrap();
    target.set_len(BYTES as u64).unwrap();
    rig.moment.begin();
    rig.copy_all();
    assert_eq!(rig.target.allocated_bytes(), Some(0));
}
