//! A limit of a throttle group, and what its leaky bucket lets pass in theory.

use std::fmt;
use std::str::FromStr;

/// Seconds of its rate that a bucket holds which has no burst of its own; and of its burst rate, where a burst may last longer
/// than a second (QEMU's docs/throttle.txt).
const FREE_BURST_SECONDS: f64 = 0.1;

/// A limit on reads, with the names of options: `iops-total=10000,iops-total-max=50000,iops-total-max-length=2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    text: String,
    in_bytes: bool,
    rate: u64,
    burst_rate: u64,
    burst_seconds: u64,
}

impl Limit {
    /// Requests that pass in so many seconds from an empty bucket, of a client that always has more.
    #[must_use]
    pub fn requests_after(&self, seconds: f64, block_bytes: u32) -> f64 {
        let (rate, burst_rate) = (self.rate as f64, self.burst_rate as f64);
        let size = match self.burst_rate {
            0 => rate * FREE_BURST_SECONDS,
            _ => burst_rate * self.burst_seconds as f64,
        };
        let mut units = size + rate * seconds;
        if self.burst_seconds > 1 {
            units = units.min(burst_rate * (FREE_BURST_SECONDS + seconds));
        }
        match self.in_bytes {
            true => units / f64::from(block_bytes),
            false => units,
        }
    }

    /// As options of a throttle group.
    #[must_use]
    pub fn options(&self) -> String {
        format!("limits.{}", self.text.replace(',', ",limits."))
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "'{text}': a limit on reads such as bps-total=20971520 or \
                 iops-total=10000,iops-total-max=50000,iops-total-max-length=2 is expected"
            )
        };
        let mut settings = text.split(',').map(|setting| setting.split_once('='));
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number @ 1..) => Ok(u64::from(number)),
            _ => Err(expected()),
        };
        let (kind, rate) = settings.next().flatten().ok_or_else(expected)?;
        let in_bytes = match kind {
            "iops-total" | "iops-read" => false,
            "bps-total" | "bps-read" => true,
            _ => return Err(expected()),
        };
        let mut limit = Limit {
            text: text.to_owned(),
            in_bytes,
            rate: number(rate)?,
            burst_rate: 0,
            burst_seconds: 1,
        };
        for setting in settings {
            let (name, value) = setting.ok_or_else(expected)?;
            match name.strip_prefix(kind) {
                Some("-max") => limit.burst_rate = number(value)?,
                Some("-max-length") => limit.burst_seconds = number(value)?,
                _ => return Err(expected()),
            }
        }
        Ok(limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(limit: &str, seconds: f64, block_bytes: u32) -> f64 {
        let limit: Limit = limit.parse().unwrap();
        limit.requests_after(seconds, block_bytes).round()
    }

    #[test]
    fn bucket_without_burst_gives_a_tenth_of_a_second_for_free() {
        assert_eq!(requests("iops-total=10000", 2.0, 65536), 21_000.0);
        assert_eq!(requests("bps-total=20971520", 5.0, 65536), 1632.0);
    }

    #[test]
    fn burst_ends_when_the_bucket_is_full() {
        let one_second = "iops-total=10000,iops-total-max=50000";
        assert_eq!(requests(one_second, 1.0, 512), 60_000.0);
        let two_seconds = "iops-total=10000,iops-total-max=50000,iops-total-max-length=2";
        let totals = [1.0, 2.0, 4.0, 8.0].map(|seconds| requests(two_seconds, seconds, 512));
        assert_eq!(totals, [55_000.0, 105_000.0, 140_000.0, 180_000.0]);
    }

    #[test]
    fn limit_becomes_options_of_a_group() {
        let limit: Limit = "bps-read=1,bps-read-max=2".parse().unwrap();
        assert_eq!(limit.options(), "limits.bps-read=1,limits.bps-read-max=2");
        for wrong in [
            "",
            "iops-total",
            "iops-total=0",
            "iops-write=1",
            "iops-total=1,bps-total=1",
            "iops-total=1,iops-total-max",
        ] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }
}
