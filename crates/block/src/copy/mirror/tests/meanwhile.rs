//! Writes while their range is copied, or written by others.

use engine::{Completion, Op};

use super::{BLOCK, BYTES, COPY_CLUSTER_BYTES, MirrorMode, Rig, rules, submit_without_data, write};
use crate::{FaultAction, IoContext, Node, testing};

/// Polls for a while, so that what does not hang ends.
fn poll(io: &mut IoContext) -> Vec<Completion> {
    let mut done = Vec::new();
    for _ in 0..50 {
        io.poll_tasks_and_submit();
        io.reap_and_poll_tasks(&mut done);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    done
}

/// The copier has read it, and its write to the target hangs.
#[test]
fn a_write_that_ends_while_its_cluster_is_copied_is_copied_again() {
    let rig = Rig::new(MirrorMode::Mark);
    rig.set_fault(1, Op::Write, FaultAction::Hang);
    let (mut io, mut copiers) = (testing::io(), testing::io());
    let node = Node::new_copier("copier", &rig.source, &rig.target, &rig.copy);
    let copier = testing::attach(&mut copiers, &node);
    submit_without_data(&mut copiers, &copier, Op::Read, 0..COPY_CLUSTER_BYTES);
    assert_eq!(poll(&mut copiers), []);
    let disk = testing::attach(&mut io, &rig.source);
    write(&mut io, &disk, 0, 1);
    rig.remove_fault(1);
    testing::run_until_completed(&mut copiers, 1);
    assert_eq!(rig.copy.pending_bytes(), BYTES as u64);
    rig.copy_all();
    assert!(rig.content("source") == rig.content("target"));
}

/// The first one is in the source when its write to the target hangs.
#[test]
fn a_write_waits_for_an_earlier_one_of_its_cluster() {
    let rig = Rig::new(MirrorMode::Write);
    rig.copy_all();
    let mut first_hangs = rules(Some((Op::Write, FaultAction::Hang)));
    first_hangs.rules[0].times = Some(1);
    rig.faults[1].release_hanging_and_set_rules(Some(first_hangs));
    let (mut io, mut other) = (testing::io(), testing::io());
    let submit = |io: &mut IoContext, byte| {
        let disk = testing::attach(io, &rig.source);
        testing::submit(io, &disk, (Op::Write, 0), vec![byte; BLOCK], 1);
        assert_eq!(poll(io), [], "{byte}");
    };
    submit(&mut io, 1);
    submit(&mut other, 2);
    rig.remove_fault(1);
    testing::run_until_completed(&mut io, 1);
    testing::run_until_completed(&mut other, 1);
    for name in ["source", "target"] {
        assert_eq!(rig.content(name)[..BLOCK], [2; BLOCK], "{name}");
    }
}
