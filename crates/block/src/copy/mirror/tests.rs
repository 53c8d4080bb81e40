//! Mirrors.

use engine::{Errno, Op};

use super::{COPY_CLUSTER_BYTES, MirrorMode};
use crate::copy::tests::{BYTES, Rig};
use crate::testing::{
    attach, fault, run_until_completed, run_until_idle, submit, submit_range, write,
};
use crate::{FaultAction, FaultRule, testing};

const BLOCK: usize = 4096;

#[test]
fn a_write_that_ends_after_its_cluster_was_copied_is_copied_again() {
    let rig = Rig::mirror(MirrorMode::Mark, false);
    rig.set_fault(0, Op::Write, FaultAction::Hang);
    let (mut io, disk) = testing::attached(&rig.source);
    submit(&mut io, &disk, (Op::Write, 0), vec![1; BLOCK], 1);
    io.poll_tasks_and_submit();
    rig.copy_all();
    assert_eq!(rig.copy.pending_bytes(), 0);
    rig.set_faults(0, []);
    run_until_completed(&mut io, 1);
    assert_eq!(rig.copy.pending_bytes(), COPY_CLUSTER_BYTES);
    rig.copy_all();
    assert!(rig.content("source") == rig.content("target"));
    assert_eq!(rig.copy.copied_bytes(), BYTES as u64 + COPY_CLUSTER_BYTES);
}

#[test]
fn both_disks_get_the_same_data_if_the_guest_changes_its_buffer_meanwhile() {
    let rig = Rig::mirror(MirrorMode::Write, false);
    rig.copy_all();
    rig.set_fault(0, Op::Write, FaultAction::Hang);
    let (mut io, disk) = testing::attached(&rig.source);
    let memory = submit(&mut io, &disk, (Op::Write, 512), vec![1; BLOCK], 1);
    io.poll_tasks_and_submit();
    // SAFETY: as a guest does; it is never freed.
    unsafe { memory.as_ptr().cast_mut().write_bytes(2, BLOCK) };
    rig.set_faults(0, []);
    run_until_completed(&mut io, 1);
    for name in ["source", "target"] {
        assert!(rig.content(name)[512..512 + BLOCK] == [1; BLOCK], "{name}");
    }
}

#[test]
fn writes_zeroes_and_discards_change_both_disks() {
    let rig = Rig::mirror(MirrorMode::Write, false);
    rig.copy_all();
    let (mut io, disk) = testing::attached(&rig.source);
    write(&mut io, &disk, 3 * COPY_CLUSTER_BYTES - 512, 1);
    let zeroes = Op::WriteZeroes { unmap: false };
    submit_range(&mut io, &disk, zeroes, 1 << 18..1 << 19);
    submit_range(&mut io, &disk, Op::Discard, 1 << 19..3 << 18);
    submit(&mut io, &disk, (Op::Write, 3 << 18), vec![3; 3 << 16], 1);
    run_until_completed(&mut io, 3);
    assert_eq!(rig.copy.pending_bytes(), 0);
    assert!(rig.content("source") == rig.content("target"));
    assert_eq!(rig.content("target")[1 << 18..3 << 18], [0; 1 << 19]);
}

#[test]
fn what_is_pending_is_written_once_and_copied_later() {
    let rig = Rig::mirror(MirrorMode::Write, false);
    let (mut io, disk) = testing::attached(&rig.source);
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
    let rig = Rig::mirror(MirrorMode::Finish, false);
    rig.copy_all();
    rig.set_fault(1, Op::Write, FaultAction::Error(Errno::NOSPC));
    let (mut io, disk) = testing::attached(&rig.source);
    write(&mut io, &disk, 0, 1);
    assert_eq!(rig.copy.pending_bytes(), COPY_CLUSTER_BYTES);
    assert!(!rig.copy.try_switch_over());
    assert_eq!(rig.try_copy(0..COPY_CLUSTER_BYTES), Err(Errno::NOSPC));
    assert_eq!(rig.copy.pending_bytes(), COPY_CLUSTER_BYTES);
    rig.set_faults(1, []);
    rig.copy_all();
    assert!(rig.copy.try_switch_over());
    assert!(rig.content("source") == rig.content("target"));
}

#[test]
fn flush_that_fails_on_the_target_alone_ends_the_mirror() {
    let rig = Rig::mirror(MirrorMode::Finish, false);
    rig.copy_all();
    rig.set_fault(1, Op::Flush, FaultAction::Error(Errno::IO));
    let (mut io, disk) = testing::attached(&rig.source);
    submit(&mut io, &disk, (Op::Flush, 0), Vec::new(), 1);
    assert_eq!(run_until_completed(&mut io, 1)[0].result, Ok(()));
    assert_eq!(rig.failures.lock().unwrap().len(), 1);
    assert!(!rig.copy.try_switch_over());
}

#[test]
fn requests_after_the_switch_over_use_the_target_alone() {
    let rig = Rig::mirror(MirrorMode::Finish, false);
    rig.copy_all();
    let (mut io, disk) = testing::attached(&rig.source);
    assert!(rig.copy.try_switch_over());
    write(&mut io, &disk, 0, 1);
    let read = submit(&mut io, &disk, (Op::Read, 0), vec![0; BLOCK], 1);
    run_until_completed(&mut io, 1);
    assert_eq!(read, [1; BLOCK]);
    assert_eq!((rig.content("source")[0], rig.content("target")[0]), (7, 1));
    rig.set_fault(1, Op::Write, FaultAction::Error(Errno::IO));
    submit(&mut io, &disk, (Op::Write, 0), vec![2; BLOCK], 1);
    let result = run_until_completed(&mut io, 1)[0].result;
    assert_eq!(result, Err(Errno::IO), "it is the guest's disk");
}

/// They are delayed in front of the source when guests go over to the target.
#[test]
fn reads_and_flushes_that_fail_on_the_source_after_the_switch_over_succeed() {
    for op in [Op::Read, Op::Flush] {
        let rig = Rig::mirror(MirrorMode::Finish, false);
        rig.copy_all();
        let delay = fault(Some(op), FaultAction::Delay(1_000_000));
        rig.set_faults(0, [delay, fault(Some(op), FaultAction::Error(Errno::IO))]);
        let (mut io, disk) = testing::attached(&rig.source);
        let mut expected = vec![0; BLOCK];
        if op == Op::Flush {
            expected.clear();
        }
        let data = submit(&mut io, &disk, (op, 0), expected.clone(), 1);
        io.poll_tasks_and_submit();
        assert!(rig.copy.try_switch_over());
        let done = run_until_completed(&mut io, 1);
        assert_eq!(done[0].result, Ok(()), "{op:?}");
        expected.fill(7);
        assert!(data == expected, "{op:?}");
    }
}

/// They wait for the range of a first write when guests go over to the target.
#[test]
fn source_that_fails_after_the_switch_over_loses_no_write() {
    let rig = Rig::mirror(MirrorMode::Finish, false);
    rig.copy_all();
    rig.set_fault(0, Op::Write, FaultAction::Hang);
    let (mut io, disk) = testing::attached(&rig.source);
    for byte in 1..4 {
        submit(&mut io, &disk, (Op::Write, 0), vec![byte; BLOCK], 1);
        io.poll_tasks_and_submit();
    }
    assert!(rig.copy.try_switch_over());
    rig.set_fault(0, Op::Write, FaultAction::Error(Errno::IO));
    let done = run_until_completed(&mut io, 3);
    assert!(done.iter().all(|one| one.result == Ok(())), "{done:?}");
    assert_eq!(rig.content("target")[..BLOCK], [3; BLOCK]);
}

/// The copier has read it, and its write to the target hangs.
#[test]
fn a_write_that_ends_while_its_cluster_is_copied_is_copied_again() {
    let rig = Rig::mirror(MirrorMode::Mark, false);
    rig.set_fault(1, Op::Write, FaultAction::Hang);
    let (mut io, mut copiers) = (testing::io(), testing::io());
    let copier = rig.copier(&mut copiers);
    submit_range(&mut copiers, &copier, Op::Read, 0..COPY_CLUSTER_BYTES);
    assert_eq!(run_until_idle(&mut copiers), []);
    let disk = attach(&mut io, &rig.source);
    write(&mut io, &disk, 0, 1);
    rig.set_faults(1, []);
    run_until_completed(&mut copiers, 1);
    assert_eq!(rig.copy.pending_bytes(), BYTES as u64);
    rig.copy_all();
    assert!(rig.content("source") == rig.content("target"));
}

/// The first one is in the source when its write to the target hangs.
#[test]
fn a_write_waits_for_an_earlier_one_of_its_cluster() {
    let rig = Rig::mirror(MirrorMode::Write, false);
    rig.copy_all();
    let first_hangs = FaultRule {
        times: Some(1),
        ..fault(Some(Op::Write), FaultAction::Hang)
    };
    rig.set_faults(1, [first_hangs]);
    let (mut io, mut other) = (testing::io(), testing::io());
    for (io, byte) in [(&mut io, 1), (&mut other, 2)] {
        let disk = attach(io, &rig.source);
        submit(io, &disk, (Op::Write, 0), vec![byte; BLOCK], 1);
        assert_eq!(run_until_idle(io), [], "{byte}");
    }
    rig.set_faults(1, []);
    run_until_completed(&mut io, 1);
    run_until_completed(&mut other, 1);
    for name in ["source", "target"] {
        assert_eq!(rig.content(name)[..BLOCK], [2; BLOCK], "{name}");
    }
}

#[test]
fn zeroes_are_not_written_to_a_target_that_has_only_zeroes() {
    let rig = Rig::mirror(MirrorMode::Write, true);
    rig.copy_all();
    let (mut io, disk) = testing::attached(&rig.source);
    let zeroes = Op::WriteZeroes { unmap: false };
    rig.set_fault(1, zeroes, FaultAction::Error(Errno::IO));
    submit_range(&mut io, &disk, zeroes, 0..COPY_CLUSTER_BYTES);
    run_until_completed(&mut io, 1);
    rig.set_faults(1, []);
    rig.copy_all();
    assert_eq!(rig.content("target")[0], 0, "it had data since");
    let rig = Rig::mirror(MirrorMode::Write, true);
    std::fs::write(rig.path("source"), vec![0; BYTES]).unwrap();
    rig.set_fault(1, zeroes, FaultAction::Error(Errno::IO));
    rig.copy_all();
    assert_eq!(rig.copy.pending_bytes(), 0);
}
