//! The limits of a throttle group, and the combinations of them that make sense.

/// Highest rate, and highest number of units of a burst, as in QEMU.
const HIGHEST_VALUE: u64 = 1_000_000_000_000_000;

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

/// Why limits are refused, in QEMU's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A total beside one of its parts.
    #[error("bps/iops/max total values and read/write values cannot be used at the same time")]
    TotalAndPart,
    /// `iops-size` without a limit of operations.
    #[error("iops size requires an iops value to be set")]
    SizeWithoutIops,
    /// A rate or burst rate that is too high.
    #[error("bps/iops/max values must be within [0, {HIGHEST_VALUE}]")]
    TooHigh,
    /// A burst of no length.
    #[error("the burst length cannot be 0")]
    NoLength,
    /// A length without a burst rate.
    #[error("burst length set without burst rate")]
    LengthWithoutBurst,
    /// A burst of too many units.
    #[error("burst length too high for this burst rate")]
    TooLong,
    /// A burst rate without a rate.
    #[error("bps_max/iops_max require corresponding bps/iops values")]
    BurstWithoutRate,
    /// A burst rate below the rate.
    #[error("bps_max/iops_max cannot be lower than bps/iops")]
    BurstBelowRate,
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
    #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
    pub(super) fn operations_per_byte(&self) -> f64 {
        match self.iops_size {
            0 => 0.0,
            bytes => 1.0 / bytes as f64,
        }
    }

    /// Checks values and combinations as QEMU does.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), LimitsError> {
        use LimitKind::{BpsRead, BpsTotal, BpsWrite, IopsRead, IopsTotal, IopsWrite};
        let is_set = |kind| self.rate(kind).rate > 0;
        let has_burst = |kind| self.rate(kind).burst_rate > 0;
        let conflicts = |total, parts: [LimitKind; 2]| {
            is_set(total) && parts.into_iter().any(is_set)
                || has_burst(total) && parts.into_iter().any(has_burst)
        };
        if conflicts(BpsTotal, [BpsRead, BpsWrite]) || conflicts(IopsTotal, [IopsRead, IopsWrite]) {
            return Err(LimitsError::TotalAndPart);
        }
        if self.iops_size > 0 && ![IopsTotal, IopsRead, IopsWrite].into_iter().any(is_set) {
            return Err(LimitsError::SizeWithoutIops);
        }
        self.rates.iter().try_for_each(check_rate)
    }
}

/// Checks one limit.
fn check_rate(limit: &RateLimit) -> Result<(), LimitsError> {
    let RateLimit {
        rate,
        burst_rate,
        burst_seconds,
    } = *limit;
    if rate > HIGHEST_VALUE || burst_rate > HIGHEST_VALUE {
        return Err(LimitsError::TooHigh);
    }
    if burst_seconds == 0 {
        return Err(LimitsError::NoLength);
    }
    if burst_seconds > 1 && burst_rate == 0 {
        return Err(LimitsError::LengthWithoutBurst);
    }
    if burst_rate > 0 && burst_seconds > HIGHEST_VALUE / burst_rate {
        return Err(LimitsError::TooLong);
    }
    if burst_rate > 0 && rate == 0 {
        return Err(LimitsError::BurstWithoutRate);
    }
    if burst_rate > 0 && burst_rate < rate {
        return Err(LimitsError::BurstBelowRate);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(set: impl Fn(&mut ThrottleLimits)) -> Result<(), LimitsError> {
        let mut limits = ThrottleLimits::default();
        set(&mut limits);
        limits.check()
    }

    fn with_rate(rate: u64, burst_rate: u64, burst_seconds: u64) -> Result<(), LimitsError> {
        checked(|limits| {
            *limits.rate_mut(LimitKind::BpsWrite) = RateLimit {
                rate,
                burst_rate,
                burst_seconds,
            };
        })
    }

    #[test]
    fn limits_that_make_sense_are_accepted() {
        assert_eq!(checked(|_| {}), Ok(()));
        assert_eq!(with_rate(100, 0, 1), Ok(()));
        assert_eq!(with_rate(100, 100, 60), Ok(()));
        assert_eq!(with_rate(HIGHEST_VALUE, HIGHEST_VALUE, 1), Ok(()));
        let mixed = checked(|limits| {
            *limits.rate_mut(LimitKind::IopsTotal) = RateLimit::of(100);
            *limits.rate_mut(LimitKind::BpsRead) = RateLimit::of(100);
            limits.iops_size = 4096;
        });
        assert_eq!(mixed, Ok(()));
    }

    #[test]
    fn each_wrong_value_has_its_error() {
        assert_eq!(
            with_rate(HIGHEST_VALUE + 1, 0, 1),
            Err(LimitsError::TooHigh)
        );
        assert_eq!(
            with_rate(1, HIGHEST_VALUE + 1, 1),
            Err(LimitsError::TooHigh)
        );
        assert_eq!(with_rate(1, 1, 0), Err(LimitsError::NoLength));
        assert_eq!(with_rate(1, 0, 2), Err(LimitsError::LengthWithoutBurst));
        assert_eq!(with_rate(1, HIGHEST_VALUE, 2), Err(LimitsError::TooLong));
        assert_eq!(with_rate(0, 1, 1), Err(LimitsError::BurstWithoutRate));
        assert_eq!(with_rate(2, 1, 1), Err(LimitsError::BurstBelowRate));
    }

    #[test]
    fn a_total_excludes_its_parts_and_a_size_needs_operations() {
        for (total, part) in [
            (LimitKind::IopsTotal, LimitKind::IopsRead),
            (LimitKind::BpsTotal, LimitKind::BpsWrite),
        ] {
            let both = checked(|limits| {
                *limits.rate_mut(total) = RateLimit::of(1);
                *limits.rate_mut(part) = RateLimit::of(1);
            });
            assert_eq!(both, Err(LimitsError::TotalAndPart));
        }
        let size = checked(|limits| {
            *limits.rate_mut(LimitKind::BpsTotal) = RateLimit::of(1);
            limits.iops_size = 4096;
        });
        assert_eq!(size, Err(LimitsError::SizeWithoutIops));
    }
}
