//! The pace of a copier: the size of its parts, and how many are copied at once.
//!
//! A guest's request waits for what the copier has begun: so parts are small beside guests, and few are copied at once. A guest's write
//! waits for the part that is being copied there: so parts grow while no write has to wait, and become smaller when one had to.

use block::COPY_CLUSTER_BYTES;

use crate::guest_speed::GuestSpeed;
use crate::guests::GuestRequests;
use crate::speed_limit::SpeedLimit;

/// The size of the first part.
const FIRST_CHUNK_BYTES: u64 = 256 << 10;

/// The pace of a copier.
pub(super) struct CopyPace {
    chunk: u64,
    max_chunk: u64,
    seen_waits: u64,
    /// The limit that a user has set.
    limit: SpeedLimit,
    /// `None`: the copier does not care for guests.
    guest_speed: Option<GuestSpeed>,
}

impl CopyPace {
    /// With parts of so many bytes at most.
    pub fn new(max_chunk: u64) -> Self {
        CopyPace {
            chunk: FIRST_CHUNK_BYTES.min(max_chunk),
            max_chunk,
            seen_waits: 0,
            limit: SpeedLimit::default(),
            guest_speed: Some(GuestSpeed::new()),
        }
    }

    /// Copies as fast as it can from now on, whatever guests do.
    pub fn ignore_guests(&mut self) {
        self.guest_speed = None;
    }

    /// Takes note of guests' requests.
    pub fn look_at_guests(
        &mut self,
        now_ns: u64,
        parts_in_flight: usize,
        requests: impl Fn() -> GuestRequests,
    ) {
        if let Some(speed) = &mut self.guest_speed {
            speed.look(now_ns, parts_in_flight, requests);
        }
    }

    /// The most parts that are copied at once; 0: the copier rests.
    pub fn max_parts_in_flight(&self, wanted: usize) -> usize {
        match &self.guest_speed {
            Some(speed) if speed.is_resting() => 0,
            Some(speed) if speed.bytes_per_second().is_some() => {
                wanted.min(speed.part_bytes_and_count().1)
            }
            _ => wanted,
        }
    }

    /// The size of the next part, after guests' writes have waited so often for one.
    pub fn chunk_bytes(&mut self, guest_waits: u64) -> u64 {
        let beside_guests = self.guest_speed.as_ref();
        let beside_guests = beside_guests.filter(|speed| speed.bytes_per_second().is_some());
        self.chunk = match beside_guests {
            Some(speed) => speed.part_bytes_and_count().0,
            None if guest_waits > self.seen_waits => self.chunk / 2,
            None => self.chunk + COPY_CLUSTER_BYTES,
        };
        self.chunk = self.chunk.clamp(COPY_CLUSTER_BYTES, self.max_chunk);
        self.seen_waits = guest_waits;
        self.within_limit(self.chunk)
    }

    /// The size of a part, in whole clusters, that is no larger than the limit of a user allows.
    pub fn within_limit(&self, bytes: u64) -> u64 {
        bytes.min(self.limit.max_part_bytes()) / COPY_CLUSTER_BYTES * COPY_CLUSTER_BYTES
    }

    /// Counts a part that begins now against the limits.
    pub fn count(&mut self, bytes: u64, now_ns: u64) {
        self.limit.count(bytes, now_ns);
        if let Some(speed) = &mut self.guest_speed {
            speed.count(bytes, now_ns);
        }
    }

    /// Counts a part that is cloned against the limit of a user: it is next to no work.
    pub fn count_clone(&mut self, bytes: u64, now_ns: u64) {
        self.limit.count(bytes, now_ns);
    }

    /// The time before which no part may begin, on the loop's clock.
    pub fn next_part_at_ns(&self) -> u64 {
        let beside_guests = self.guest_speed.as_ref();
        let beside_guests = beside_guests.map_or(0, GuestSpeed::next_part_at_ns);
        self.limit.next_part_at_ns().max(beside_guests)
    }

    /// The time at which it wants a turn, when the copier rests.
    pub fn rests_until_ns(&self) -> u64 {
        let speed = self.guest_speed.as_ref();
        let resting = speed.filter(|speed| speed.is_resting());
        resting.map_or(0, GuestSpeed::next_look_ns)
    }

    /// Sets the limit, in bytes per second; 0: there is none. Another one applies at once.
    pub fn set_speed(&mut self, speed: u64) {
        self.limit
            .set_at_once(Some(speed).filter(|speed| *speed > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;

    #[test]
    fn parts_grow_until_a_write_has_to_wait() {
        let mut pace = CopyPace::new(MIB);
        let sizes: Vec<u64> = (0..20).map(|_| pace.chunk_bytes(0)).collect();
        assert!(sizes.is_sorted() && sizes[19] == MIB, "{sizes:?}");
        assert_eq!(pace.chunk_bytes(1), MIB / 2);
        assert_eq!(pace.chunk_bytes(3), MIB / 4);
        assert_eq!(pace.chunk_bytes(3), MIB / 4 + COPY_CLUSTER_BYTES);
        let mut waits = (4..20).map(|waits| pace.chunk_bytes(waits));
        assert_eq!(waits.by_ref().last(), Some(COPY_CLUSTER_BYTES));
    }

    #[test]
    fn parts_beside_guests_are_small_few_and_far_apart() {
        let mut pace = CopyPace::new(MIB);
        let look = |pace: &mut CopyPace, now_ns, ended| {
            pace.look_at_guests(now_ns, 0, || GuestRequests {
                ended,
                ticks: ended * 1000,
                ..GuestRequests::default()
            });
        };
        assert_eq!(pace.max_parts_in_flight(8), 8);
        look(&mut pace, 1000 * MS, 100);
        assert_eq!(pace.max_parts_in_flight(8), 0, "it rests");
        assert_eq!(pace.rests_until_ns(), 1005 * MS);
        look(&mut pace, 1005 * MS, 150);
        look(&mut pace, 1025 * MS, 200);
        assert_eq!(pace.max_parts_in_flight(8), 1);
        assert_eq!(pace.chunk_bytes(0), COPY_CLUSTER_BYTES);
        // A second of the speed at first, at once.
        pace.count(128 * MIB, 1025 * MS);
        assert_eq!(pace.next_part_at_ns(), 2025 * MS);
        pace.ignore_guests();
        assert_eq!((pace.max_parts_in_flight(8), pace.rests_until_ns()), (8, 0));
        assert!(pace.chunk_bytes(0) > COPY_CLUSTER_BYTES);
    }

    #[test]
    fn parts_are_as_far_apart_as_the_limit_says() {
        let mut pace = CopyPace::new(MIB);
        pace.set_speed(MIB);
        assert_eq!(pace.chunk_bytes(0), MIB / 4);
        pace.count(MIB / 4, 1000);
        assert_eq!(pace.next_part_at_ns(), 250_001_000);
        pace.count(MIB / 4, 250_002_000);
        assert_eq!(pace.next_part_at_ns(), 500_002_000);
        pace.set_speed(1);
        assert_eq!(pace.next_part_at_ns(), 0);
        assert_eq!(pace.chunk_bytes(0), COPY_CLUSTER_BYTES);
        // A clone counts as well.
        pace.set_speed(64 * MIB);
        assert_eq!(pace.within_limit(64 * MIB), 16 * MIB);
        pace.count_clone(16 * MIB, 1000);
        assert_eq!(pace.next_part_at_ns(), 250_001_000);
    }
}
