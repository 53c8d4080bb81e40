//! Mirrors, while other iothreads write.

mod meanwhile;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use engine::{Errno, Op};

use super::{BlockCopy, COPY_CLUSTER_BYTES, CopyFailure, MirrorMode};
use crate::{
    Aio, AttachedDisk, FaultAction, FaultRule, FaultRules, Faults, IoContext, Node, testing,
};

const BYTES: usize = 1 << 20;
const BLOCK: usize = 4096;

/// A source full of 7, a target of zeroes, and a mirror.
struct Rig {
    folder: tempfile::TempDir,
    source: Arc<Node>,
    target: Arc<Node>,
    copy: Arc<BlockCopy>,
    /// Of filters in front of source and target, which have no rules yet.
    faults: [Arc<Faults>; 2],
    failures: Arc<Mutex<Vec<CopyFailure>>>,
}

impl Rig {
    fn new(mode: MirrorMode) -> Self {
        Self::with_target_that_is_zero(false, mode)
    }

    fn with_target_that_is_zero(target_is_zero: bool, mode: MirrorMode) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, byte| {
            let path = folder.path().join(name);
            testing::file(&path, &[byte; BYTES], Aio::Threads)
        };
        let faults = [(); 2].map(|()| Faults::new(rules(None)));
        let filter = |below, faults: &Arc<Faults>| {
            Node::new_filter("filter", &below, faults.clone(), false, true)
        };
        let source = filter(file("source", 7), &faults[0]);
        let target = filter(file("target", 0), &faults[1]);
        let failures: Arc<Mutex<Vec<_>>> = Arc::default();
        let failed = failures.clone();
        let copy = BlockCopy::new_mirror(source.size(), target_is_zero, move |failure| {
            failed.lock().unwrap().push(failure);
        });
        let rig = Rig {
            copy: copy.unwrap(),
            folder,
            source,
            target,
            faults,
            failures,
        };
        rig.set_mode(mode);
        rig
    }

    fn set_mode(&self, mode: MirrorMode) {
        self.source.set_mirror(&self.copy, &self.target, mode);
    }

    /// Lets one of the disks fail, or be slow.
    fn set_fault(&self, disk: usize, op: Op, action: FaultAction) {
        self.faults[disk].release_hanging_and_set_rules(Some(rules(Some((op, action)))));
    }

    fn remove_fault(&self, disk: usize) {
        self.faults[disk].release_hanging_and_set_rules(Some(rules(None)));
    }

    fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path().join(name)).unwrap()
    }

    fn copy_all(&self) {
        assert_eq!(self.try_copy(0..BYTES as u64), Ok(()));
    }

    fn try_copy(&self, range: Range<u64>) -> Result<(), Errno> {
        let mut io = testing::io();
        let node = Node::new_copier("copier", &self.source, &self.target, &self.copy);
        let copier = testing::attach(&mut io, &node);
        submit_without_data(&mut io, &copier, Op::Read, range);
        let done = testing::run_until_completed(&mut io, 1);
        io.detach(copier);
        done[0].result
    }
}

fn rules(fault: Option<(Op, FaultAction)>) -> FaultRules {
    let rules = fault.map(|(op, action)| FaultRule {
        begins: None,
        op: Some(op),
        bytes: None,
        times: None,
        one_in: 1,
        action,
    });
    FaultRules {
        rules: rules.into_iter().collect(),
        seed: 1,
    }
}

fn submit_without_data(io: &mut IoContext, disk: &AttachedDisk, op: Op, range: Range<u64>) {
    let len = range.end - range.start;
    let request = crate::Request::without_data(op, range.start, len, 9);
    // SAFETY: there is no memory.
    unsafe { io.submit(disk, request) }.unwrap();
}

fn write(io: &mut IoContext, disk: &AttachedDisk, offset: u64, byte: u8) {
    testing::submit(io, disk, (Op::Write, offset), vec![byte; BLOCK], 1);
    let done = testing::run_until_completed(io, 1);
    assert_eq!(done[0].result, Ok(()));
}

#[test]
fn a_write_that_ends_after_its_cluster_was_copied_is_copied_again() {
    let rig = Rig::new(MirrorMode::Mark);
    rig.set_fault(0, Op::Write, FaultAction::Hang);
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    testing::submit(&mut io, &disk, (Op::Write, 0), vec![1; BLOCK], 1);
    io.poll_tasks_and_submit();
    rig.copy_all();
    assert_eq!(rig.copy.pending_bytes(), 0);
    rig.remove_fault(0);
    testing::run_until_completed(&mut io, 1);
    assert_eq!(rig.copy.pending_bytes(), COPY_CLUSTER_BYTES);
    rig.copy_all();
    assert!(rig.content("source") == rig.content("target"));
    assert_eq!(rig.copy.copied_bytes(), BYTES as u64 + COPY_CLUSTER_BYTES);
}

#[test]
fn both_disks_get_the_same_data_if_the_guest_changes_its_buffer_meanwhile() {
    let rig = Rig::new(MirrorMode::Write);
    rig.copy_all();
    rig.set_fault(0, Op::Write, FaultAction::Hang);
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    let memory = testing::submit(&mut io, &disk, (Op::Write, 512), vec![1; BLOCK], 1);
    io.poll_tasks_and_submit();
    // SAFETY: as a guest does; it is never freed.
    unsafe { memory.as_ptr().cast_mut().write_bytes(2, BLOCK) };
    rig.remove_fault(0);
    testing::run_until_completed(&mut io, 1);
    for name in ["source", "target"] {
        assert!(rig.content(name)[512..512 + BLOCK] == [1; BLOCK], "{name}");
    }
}

#[test]
fn writes_zeroes_and_discards_change_both_disks() {
    let rig = Rig::new(MirrorMode::Write);
    rig.copy_all();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    write(&mut io, &disk, 3 * COPY_CLUSTER_BYTES - 512, 1);
    let zeroes = Op::WriteZeroes { unmap: false };
    submit_without_data(&mut io, &disk, zeroes, 1 << 18..1 << 19);
    submit_without_data(&mut io, &disk, Op::Discard, 1 << 19..3 << 18);
    testing::submit(&mut io, &disk, (Op::Write, 3 << 18), vec![3; 3 << 16], 1);
    testing::run_until_completed(&mut io, 3);
    assert_eq!(rig.copy.pending_bytes(), 0);
    assert!(rig.content("source") == rig.content("target"));
    assert_eq!(rig.content("target")[1 << 18..3 << 18], [0; 1 << 19]);
}

#[test]
fn what_is_pending_is_written_once_and_copied_later() {
    let rig = Rig::new(MirrorMode::Write);
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    write(&mut io, &disk, 0, 1);
    assert!(rig.content("target").iter().all(|byte| *byte == 0));
    assert!(!rig.copy.try_end_in_sync(), "not all is copied");
    rig.copy_all();
    assert!(rig.content("source") == rig.content("target"));
    assert!(rig.copy.try_end_in_sync());
    write(&mut io, &disk, 0, 2);
    assert_eq!(rig.content("target")[0], 1, "the mirror has ended");
}

#[test]
fn failing_target_is_not_the_guests_error_and_prevents_the_end() {
    let rig = Rig::new(MirrorMode::Finish);
    rig.copy_all();
    rig.set_fault(1, Op::Write, FaultAction::Error(Errno::NOSPC));
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    write(&mut io, &disk, 0, 1);
    assert_eq!(rig.copy.pending_bytes(), COPY_CLUSTER_BYTES);
    assert!(!rig.copy.try_switch_over());
    assert_eq!(rig.try_copy(0..COPY_CLUSTER_BYTES), Err(Errno::NOSPC));
    assert_eq!(rig.copy.pending_bytes(), COPY_CLUSTER_BYTES);
    rig.remove_fault(1);
    rig.copy_all();
    assert!(rig.copy.try_switch_over());
    assert!(rig.content("source") == rig.content("target"));
}

#[test]
fn flush_that_fails_on_the_target_alone_ends_the_mirror() {
    let rig = Rig::new(MirrorMode::Finish);
    rig.copy_all();
    rig.set_fault(1, Op::Flush, FaultAction::Error(Errno::IO));
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    testing::submit(&mut io, &disk, (Op::Flush, 0), Vec::new(), 1);
    assert_eq!(testing::run_until_completed(&mut io, 1)[0].result, Ok(()));
    assert_eq!(rig.failures.lock().unwrap().len(), 1);
    assert!(!rig.copy.try_switch_over());
}

#[test]
fn requests_after_the_switch_over_use_the_target_alone() {
    let rig = Rig::new(MirrorMode::Finish);
    rig.copy_all();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    assert!(rig.copy.try_switch_over());
    write(&mut io, &disk, 0, 1);
    let read = testing::submit(&mut io, &disk, (Op::Read, 0), vec![0; BLOCK], 1);
    testing::run_until_completed(&mut io, 1);
    assert_eq!(read, [1; BLOCK]);
    assert_eq!((rig.content("source")[0], rig.content("target")[0]), (7, 1));
    rig.set_fault(1, Op::Write, FaultAction::Error(Errno::IO));
    testing::submit(&mut io, &disk, (Op::Write, 0), vec![2; BLOCK], 1);
    let done = testing::run_until_completed(&mut io, 1);
    assert_eq!(done[0].result, Err(Errno::IO), "it is the guest's disk");
}

/// They are delayed in front of the source when guests go over to the target.
#[test]
fn reads_and_flushes_that_fail_on_the_source_after_the_switch_over_succeed() {
    for op in [Op::Read, Op::Flush] {
        let rig = Rig::new(MirrorMode::Finish);
        rig.copy_all();
        let mut delayed_error = rules(Some((op, FaultAction::Delay(1_000_000))));
        let error = rules(Some((op, FaultAction::Error(Errno::IO))));
        delayed_error.rules.extend(error.rules);
        rig.faults[0].release_hanging_and_set_rules(Some(delayed_error));
        let mut io = testing::io();
        let disk = testing::attach(&mut io, &rig.source);
        let mut expected = vec![0; BLOCK];
        if op == Op::Flush {
            expected.clear();
        }
        let data = testing::submit(&mut io, &disk, (op, 0), expected.clone(), 1);
        io.poll_tasks_and_submit();
        assert!(rig.copy.try_switch_over());
        let done = testing::run_until_completed(&mut io, 1);
        assert_eq!(done[0].result, Ok(()), "{op:?}");
        expected.fill(7);
        assert!(data == expected, "{op:?}");
    }
}

/// They wait for the range of a first write when guests go over to the target.
#[test]
fn source_that_fails_after_the_switch_over_loses_no_write() {
    let rig = Rig::new(MirrorMode::Finish);
    rig.copy_all();
    rig.set_fault(0, Op::Write, FaultAction::Hang);
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    for byte in 1..4 {
        testing::submit(&mut io, &disk, (Op::Write, 0), vec![byte; BLOCK], 1);
        io.poll_tasks_and_submit();
    }
    assert!(rig.copy.try_switch_over());
    rig.set_fault(0, Op::Write, FaultAction::Error(Errno::IO));
    let done = testing::run_until_completed(&mut io, 3);
    assert!(done.iter().all(|one| one.result == Ok(())), "{done:?}");
    assert_eq!(rig.content("target")[..BLOCK], [3; BLOCK]);
}

/// Ends all writers if one thread has failed.
struct EndOnPanic<'a>(&'a AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Two iothreads write the same blocks, with numbers; each reads what it has written last. A third one copies.
#[test]
fn no_acknowledged_write_is_lost_by_a_switch_over() {
    const BLOCKS: u32 = 64;
    for round in 0..6u32 {
        let rig = Rig::new(MirrorMode::Finish);
        let (end, written) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let _end_writers = EndOnPanic(&end);
            for writer in 0..2u32 {
                let (rig, end, written) = (&rig, &end, &written);
                scope.spawn(move || {
                    let _end_others = EndOnPanic(end);
                    let mut io = testing::io();
                    let disk = testing::attach(&mut io, &rig.source);
                    for number in 1u32.. {
                        if end.load(Ordering::Relaxed) {
                            break;
                        }
                        // A block of its own, and one of both.
                        let own = number.wrapping_mul(7) % BLOCKS * 2 + writer;
                        let shared = 2 * BLOCKS + number % 8;
                        let data = (number * 2 + writer).to_ne_bytes().repeat(1024);
                        for block in [own, shared] {
                            let offset = u64::from(block) * BLOCK as u64;
                            testing::submit(&mut io, &disk, (Op::Write, offset), data.clone(), 1);
                        }
                        testing::run_until_completed(&mut io, 2);
                        let offset = u64::from(own) * BLOCK as u64;
                        let read =
                            testing::submit(&mut io, &disk, (Op::Read, offset), vec![0; BLOCK], 1);
                        testing::run_until_completed(&mut io, 1);
                        assert!(read == data, "the last write is there");
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let wait = |count| {
                let until = written.load(Ordering::Relaxed) + count;
                while written.load(Ordering::Relaxed) < until && !end.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            };
            wait(20 * round);
            while !end.load(Ordering::Relaxed) && !rig.copy.try_switch_over() {
                rig.copy_all();
            }
            assert_eq!(rig.copy.pending_bytes(), 0);
            wait(30);
            end.store(true, Ordering::Relaxed);
        });
    }
}

/// Writes of two iothreads to the same blocks have the same order on both disks.
#[test]
fn overlapping_writes_leave_both_disks_the_same() {
    let rig = Rig::new(MirrorMode::Write);
    std::thread::scope(|scope| {
        for writer in 1..3u8 {
            let rig = &rig;
            scope.spawn(move || {
                let mut io = testing::io();
                let disk = testing::attach(&mut io, &rig.source);
                for number in 0..300u64 {
                    let offset = number * 13 % 8 * 512;
                    let byte = u8::try_from(number % 100).unwrap() * 2 + writer;
                    write(&mut io, &disk, offset, byte);
                }
            });
        }
        for _ in 0..20 {
            rig.copy_all();
        }
    });
    rig.copy_all();
    assert!(rig.content("source") == rig.content("target"));
}

#[test]
fn zeroes_are_not_written_to_a_target_that_has_only_zeroes() {
    let rig = Rig::with_target_that_is_zero(true, MirrorMode::Write);
    rig.copy_all();
    let mut io = testing::io();
    let disk = testing::attach(&mut io, &rig.source);
    let zeroes = Op::WriteZeroes { unmap: false };
    rig.set_fault(1, zeroes, FaultAction::Error(Errno::IO));
    submit_without_data(&mut io, &disk, zeroes, 0..COPY_CLUSTER_BYTES);
    testing::run_until_completed(&mut io, 1);
    rig.remove_fault(1);
    rig.copy_all();
    assert_eq!(rig.content("target")[0], 0, "it had data since");
    let rig = Rig::with_target_that_is_zero(true, MirrorMode::Write);
    std::fs::write(rig.folder.path().join("source"), vec![0; BYTES]).unwrap();
    rig.set_fault(1, zeroes, FaultAction::Error(Errno::IO));
    rig.copy_all();
    assert_eq!(rig.copy.pending_bytes(), 0);
}
