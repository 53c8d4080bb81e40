//! Copies of what is dirty: writes while a copy is about to be limited.

use std::sync::Arc;

use engine::Op;

use super::super::{BlockCopy, CopyExtent, CopyMoment, MIN_CLUSTER_BYTES};
use super::{BYTES, fault_of};
use crate::{Aio, FaultAction, testing};

/// The first write copies its cluster, whose read hangs. Then the cluster turns out to be clean, and another iothread writes it.
#[test]
fn a_write_waits_for_a_copy_that_began_before_its_cluster_was_known_to_be_clean() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (source, faults) = fault_of(
        &testing::file(&path("source"), &[7; BYTES], Aio::Threads),
        Op::Read,
        None,
        FaultAction::Hang,
    );
    let target = testing::file(&path("target"), &[0; BYTES], Aio::Threads);
    let moment = Arc::new(CopyMoment::default());
    let copy = BlockCopy::new(
        source.size(),
        MIN_CLUSTER_BYTES,
        moment.clone(),
        CopyExtent::Dirty,
        |_| (),
    )
    .unwrap();
    source.set_copy_before_write(&copy, &target);
    moment.begin();
    let mut iothreads = [testing::io(), testing::io()];
    let disks = iothreads.each_mut().map(|io| testing::attach(io, &source));
    let [first, second] = &mut iothreads;
    testing::submit(first, &disks[0], (Op::Write, 0), vec![1; 512], 1);
    first.poll_tasks_and_submit();
    copy.limit_to_dirty(|_| ());
    testing::submit(second, &disks[1], (Op::Write, 0), vec![2; 4096], 1);
    let mut done = Vec::new();
    for _ in 0..100 {
        second.poll_tasks_and_submit();
        second.reap_and_poll_tasks(&mut done);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(done, [], "the cluster is being read");
    let _no_hang = faults.release_and_prevent_hangs();
    testing::run_until_completed(first, 1);
    testing::run_until_completed(second, 1);
    let cluster = usize::try_from(MIN_CLUSTER_BYTES).unwrap();
    assert!(std::fs::read(path("target")).unwrap()[..cluster] == vec![7; cluster]);
    assert_eq!(copy.pending_bytes(), 0);
}
