//! Long ranges: searched in bounded parts, and not locked as a whole.

use std::sync::Arc;

use engine::Op;

use super::super::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyExtent, CopyMoment, MIN_CLUSTER_BYTES, SEARCH_BYTES,
};
use super::{BYTES, fault_in, submit_copy, write};
use crate::{Aio, FaultAction, testing};

/// A search is repeated for each part: it must not look at the whole disk again.
#[test]
fn a_search_for_what_is_pending_looks_at_a_bounded_part_of_the_disk() {
    const DISK: u64 = 1 << 40;
    for extent in [CopyExtent::All, CopyExtent::Dirty] {
        let moment = Arc::new(CopyMoment::default());
        let copy = BlockCopy::new(DISK, MIN_CLUSTER_BYTES, moment, extent, |_| ()).unwrap();
        copy.limit_to_dirty(|wanted| wanted.mark(0..DISK));
        let first = copy.next_pending(0..DISK).unwrap();
        assert_eq!(first, 0..SEARCH_BYTES);
        // Every other cluster was copied ahead of the copier.
        for cluster in (0..DISK / COPY_CLUSTER_BYTES).step_by(2) {
            let start = cluster * COPY_CLUSTER_BYTES;
            copy.mark_done(start..start + COPY_CLUSTER_BYTES);
        }
        assert_eq!(copy.pending_bytes(), DISK / 2);
        let mut ranges = copy.pending_ranges();
        assert_eq!(
            ranges.next(),
            Some(COPY_CLUSTER_BYTES..2 * COPY_CLUSTER_BYTES)
        );
        copy.mark_done(0..DISK - COPY_CLUSTER_BYTES);
        let last = DISK - COPY_CLUSTER_BYTES..DISK;
        assert_eq!(copy.next_pending(0..DISK), Some(last));
    }
}

/// The copy of its first part hangs.
#[test]
fn a_long_discard_does_not_lock_all_that_it_has_to_copy() {
    const LONG: usize = 3 * BYTES;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| testing::file(&folder.path().join(name), &vec![7; LONG], Aio::Threads);
    let (source, target) = (file("source"), file("target"));
    let (target, faults) = fault_in(&target, Some(0..512), FaultAction::Hang);
    let moment = Arc::new(CopyMoment::default());
    let copy = BlockCopy::new(
        source.size(),
        MIN_CLUSTER_BYTES,
        moment.clone(),
        CopyExtent::All,
        |_| (),
    )
    .unwrap();
    source.set_copy_before_write(&copy, &target);
    moment.begin();
    let (mut io, mut other) = (testing::io(), testing::io());
    let disk = testing::attach(&mut io, &source);
    submit_copy(&mut io, &disk, Op::Discard, 0, LONG as u64);
    io.poll_tasks_and_submit();
    let disk_of_other = testing::attach(&mut other, &source);
    write(&mut other, &disk_of_other, 2 * BYTES as u64, 1);
    assert_eq!(copy.guest_waits(), 0);
    assert_eq!(copy.copied_bytes(), MIN_CLUSTER_BYTES);
    let _no_hang = faults.release_and_prevent_hangs();
    testing::run_until_completed(&mut io, 1);
    assert_eq!(copy.pending_bytes(), 0);
}
