//! Long ranges: searched in bounded parts, and not locked as a whole.

use std::sync::Arc;

use super::super::{BlockCopy, COPY_CLUSTER_BYTES, CopyMoment, SEARCH_BYTES};

/// A search is repeated for each part: it must not look at the whole disk again.
#[test]
fn a_search_for_what_is_pending_looks_at_a_bounded_part_of_the_disk() {
    const DISK: u64 = 1 << 40;
    for of_dirty in [false, true] {
        let moment = Arc::new(CopyMoment::default());
        let copy = BlockCopy::new(DISK, moment, of_dirty, |_| ()).unwrap();
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
