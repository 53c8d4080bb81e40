//! The pace of a copier: the size of its parts, and its speed limit.
//!
//! A guest's write waits for the part that is being copied there. So parts grow while no write has to wait, and become smaller when
//! one had to.

use block::COPY_CLUSTER_BYTES;

/// The size of the first part.
const FIRST_CHUNK_BYTES: u64 = 256 << 10;
/// With a speed limit, so many parts per second at least.
const PARTS_PER_SECOND: u64 = 4;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// The pace of a copier.
pub(super) struct CopyPace {
    chunk: u64,
    max_chunk: u64,
    seen_waits: u64,
    speed: u64,
    next_part_at_ns: u64,
}

impl CopyPace {
    /// With parts of so many bytes at most.
    pub fn new(max_chunk: u64) -> Self {
        CopyPace {
            chunk: FIRST_CHUNK_BYTES.min(max_chunk),
            max_chunk,
            seen_waits: 0,
            speed: 0,
            next_part_at_ns: 0,
        }
    }

    /// The size of the next part, after guests' writes have waited so often for one.
    pub fn chunk_bytes(&mut self, guest_waits: u64) -> u64 {
        self.chunk = match guest_waits > self.seen_waits {
            true => self.chunk / 2,
            false => self.chunk + COPY_CLUSTER_BYTES,
        };
        self.chunk = self.chunk.clamp(COPY_CLUSTER_BYTES, self.max_chunk);
        self.seen_waits = guest_waits;
        let chunk = match self.speed {
            0 => self.chunk,
            speed => self.chunk.min(speed / PARTS_PER_SECOND),
        };
        (chunk / COPY_CLUSTER_BYTES).max(1) * COPY_CLUSTER_BYTES
    }

    /// Counts a part that begins now against the limit.
    pub fn count(&mut self, bytes: u64, now_ns: u64) {
        if self.speed == 0 {
            return;
        }
        let takes_ns = u128::from(bytes) * NS_PER_SECOND / u128::from(self.speed);
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        self.next_part_at_ns = self.next_part_at_ns.max(now_ns).saturating_add(takes_ns);
    }

    /// The time before which no part may begin, on the loop's clock.
    pub fn next_part_at_ns(&self) -> u64 {
        self.next_part_at_ns
    }

    /// Sets the limit, in bytes per second; 0: there is none. Another one applies at once.
    pub fn set_speed(&mut self, speed: u64) {
        if self.speed != speed {
            self.speed = speed;
            self.next_part_at_ns = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

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
    }
}
