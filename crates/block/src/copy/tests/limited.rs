//! Copies of what is dirty: writes while a copy is about to be limited.

use super::*;

/// The first write copies its cluster, whose read hangs. Then the cluster turns out to be clean, and another iothread writes it.
#[test]
fn a_write_waits_for_a_copy_that_began_before_its_cluster_was_known_to_be_clean() {
    let rig = Rig::backup(CopyExtent::Dirty);
    rig.set_fault(0, Op::Read, FaultAction::Hang);
    rig.moment.begin();
    let mut iothreads = [testing::io(), testing::io()];
    let disks = iothreads.each_mut().map(|io| attach(io, &rig.source));
    let [first, second] = &mut iothreads;
    submit(first, &disks[0], (Op::Write, 0), vec![1; 512], 1);
    first.poll_tasks_and_submit();
    rig.copy.limit_to_dirty(|_| ());
    submit(second, &disks[1], (Op::Write, 0), vec![2; 4096], 1);
    assert_eq!(run_until_idle(second), [], "the cluster is being read");
    rig.set_faults(0, []);
    run_until_completed(first, 1);
    run_until_completed(second, 1);
    let cluster = usize::try_from(MIN_CLUSTER_BYTES).unwrap();
    assert!(rig.content("target")[..cluster] == vec![7; cluster]);
    assert_eq!(rig.copy.pending_bytes(), 0);
}
