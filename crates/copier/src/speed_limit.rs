//! A limit of bytes per second.

use block::COPY_CLUSTER_BYTES;

/// So many parts per second at least.
const PARTS_PER_SECOND: u64 = 4;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// A limit, and the time at which it lets the next part begin.
#[derive(Default)]
pub(super) struct SpeedLimit {
    bytes_per_second: Option<u64>,
    next_part_at_ns: u64,
}

impl SpeedLimit {
    /// The limit; `None`: there is none.
    pub fn bytes_per_second(&self) -> Option<u64> {
        self.bytes_per_second
    }

    /// The most bytes of the next part, in whole clusters.
    pub fn max_part_bytes(&self) -> u64 {
        match self.bytes_per_second {
            None => u64::MAX,
            Some(speed) => (speed / PARTS_PER_SECOND).max(COPY_CLUSTER_BYTES),
        }
    }

    /// Counts a part that begins now.
    pub fn count(&mut self, bytes: u64, now_ns: u64) {
        let Some(speed) = self.bytes_per_second else {
            return;
        };
        let takes_ns = u128::from(bytes) * NS_PER_SECOND / u128::from(speed);
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        self.next_part_at_ns = self.next_part_at_ns.max(now_ns).saturating_add(takes_ns);
    }

    /// The time before which no part may begin, on the loop's clock.
    pub fn next_part_at_ns(&self) -> u64 {
        self.next_part_at_ns
    }

    /// Sets the limit. Another one applies at once: what has begun under the old one does not count.
    pub fn set_at_once(&mut self, bytes_per_second: Option<u64>) {
        if self.bytes_per_second != bytes_per_second {
            *self = SpeedLimit {
                bytes_per_second,
                next_part_at_ns: 0,
            };
        }
    }

    /// Sets the limit for parts that are counted from now on.
    pub fn set_for_next_parts(&mut self, bytes_per_second: Option<u64>) {
        self.bytes_per_second = bytes_per_second;
    }
}
