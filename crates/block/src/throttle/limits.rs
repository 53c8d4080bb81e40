//! The limits of a throttle group.
//!
//! Options refuse values out of QEMU's range and combinations that make no sense, with the names of the keys
//! (`options::ThrottleGroupOptions`). Here all are taken as they are.

use super::numbers::as_f64;

/// A limit of operations or bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Units per second in the long run; 0: no limit.
    pub rate: u64,
    /// Units per second in a burst; 0: a burst of a tenth of a second of `rate`.
    pub burst_rate: u64,
    /// How long a burst may last, in seconds, from 1. More than 1 requires a burst rate.
    pub burst_seconds: u64,
}

impl Default for RateLimit {
    /// No limit.
    fn default() -> Self {
        RateLimit {
            rate: 0,
            burst_rate: 0,
            burst_seconds: 1,
        }
    }
}

impl RateLimit {
    /// A limit without a burst rate.
    #[must_use]
    pub fn of(rate: u64) -> Self {
        RateLimit {
            rate,
            ..RateLimit::default()
        }
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// Reads and writes.
    IopsTotal,
    /// Reads.
    IopsRead,
    /// Writes, and all that changes data.
    IopsWrite,
    /// Bytes of reads and writes.
    BpsTotal,
    /// Bytes of reads.
    BpsRead,
    /// Bytes of writes, and of all that changes data.
    BpsWrite,
}

impl LimitKind {
    /// All kinds.
    pub const ALL: [LimitKind; 6] = [
        LimitKind::IopsTotal,
        LimitKind::IopsRead,
        LimitKind::IopsWrite,
        LimitKind::BpsTotal,
        LimitKind::BpsRead,
        LimitKind::BpsWrite,
    ];

    /// Whether it counts bytes, not operations.
    pub(super) fn counts_bytes(self) -> bool {
        matches!(
            self,
            LimitKind::BpsTotal | LimitKind::BpsRead | LimitKind::BpsWrite
        )
    }

    /// Its name in options and QMP: `iops-total`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::IopsTotal => "iops-total",
            LimitKind::IopsRead => "iops-read",
            LimitKind::IopsWrite => "iops-write",
            LimitKind::BpsTotal => "bps-total",
            LimitKind::BpsRead => "bps-read",
            LimitKind::BpsWrite => "bps-write",
        }
    }
}

/// The limits of a throttle group. By default there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleLimits {
    /// In the order of [`LimitKind::ALL`].
    rates: [RateLimit; 6],
    /// A request of more bytes than this counts as several operations, in proportion; 0: each request counts as one.
    pub iops_size: u64,
}

impl ThrottleLimits {
    /// The limit of a kind.
    #[must_use]
    pub fn rate(&self, kind: LimitKind) -> RateLimit {
        self.rates[kind as usize]
    }

    /// The limit of a kind, to be changed.
    pub fn rate_mut(&mut self, kind: LimitKind) -> &mut RateLimit {
        &mut self.rates[kind as usize]
    }

    /// The reciprocal of `iops_size`; 0 if each request counts as one operation.
    pub(super) fn operations_per_byte(&self) -> f64 {
        match self.iops_size {
            0 => 0.0,
            bytes => 1.0 / as_f64(bytes),
        }
    }
}
