//! Long ranges: searched in bounded parts, and not locked as a whole.

use super::super::SEARCH_BYTES;
use super::*;

/// A search is repeated for each part: it must not look at the whole disk again.
#[test]
fn a_search_for_what_is_pending_looks_at_a_bounded_part_of_the_disk() {
    const DISK: u64 = 1 << 36;
    for extent in [CopyExtent::All, CopyExtent::Dirty] {
        let moment = Arc::default();
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
    let rig = Rig::new_backup((Aio::Threads, LONG, true), CopyExtent::All);
    let first_hangs = FaultRule {
        bytes: Some(0..512),
        ..testing::fault(Some(Op::Write), FaultAction::Hang)
    };
    rig.set_faults(1, [first_hangs]);
    rig.moment.begin();
    let (mut io, mut other) = (testing::io(), testing::io());
    let disk = attach(&mut io, &rig.source);
    submit_range(&mut io, &disk, Op::Discard, 0..LONG as u64);
    io.poll_tasks_and_submit();
    let disk_of_other = attach(&mut other, &rig.source);
    write(&mut other, &disk_of_other, 2 * BYTES as u64, 1);
    assert_eq!(rig.copy.guest_waits(), 0);
    assert_eq!(rig.copy.copied_bytes(), MIN_CLUSTER_BYTES);
    rig.set_faults(1, []);
    run_until_completed(&mut io, 1);
    assert_eq!(rig.copy.pending_bytes(), 0);
}
