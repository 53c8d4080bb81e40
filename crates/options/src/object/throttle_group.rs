//! `--object throttle-group`: limits on the operations and bytes per second of the nodes of driver `throttle` that name the group.
//!
//! Keys, values, defaults and errors are QEMU's. An error also names the keys that it is about, and the remedy.

use crate::{
    Problem,
    fields::Fields,
    form::{ID_FORM, NumberForm, number_form, size_form},
    key::ValueType,
    settings::settings,
    tree::Object,
};

/// Highest rate, and highest number of operations or bytes of a burst.
const MAX_RATE: u64 = 1_000_000_000_000_000;

/// The form of rates of operations.
const IOPS_FORM: NumberForm<u64> = number_form(0, MAX_RATE);
/// The form of rates of bytes.
const BPS_FORM: NumberForm<u64> = size_form(0, MAX_RATE);
/// The form of the length of a burst.
const SECONDS_FORM: NumberForm<u64> = number_form(1, u32::MAX as u64).with_placeholder("SECONDS");

settings! {
    /// `--object throttle-group,…`
    pub struct ThrottleGroupOptions {
        /// its name, for throttle-group of nodes
        pub id: String = "id", ID_FORM, required("write id=NAME, such as id=limits0");
        /// reads and writes per second, 0 = no limit (default 0)
        pub iops_total: u64 = "limits.iops-total", IOPS_FORM, default(0);
        /// the same in a burst, 0 = 0.1 s of the limit at once (default 0)
        pub iops_total_max: u64 = "limits.iops-total-max", IOPS_FORM, default(0);
        /// how long such a burst may last (default 1)
        pub iops_total_max_length: u64 = "limits.iops-total-max-length", SECONDS_FORM, default(1);
        /// reads per second (default 0)
        pub iops_read: u64 = "limits.iops-read", IOPS_FORM, default(0);
        /// the same in a burst (default 0)
        pub iops_read_max: u64 = "limits.iops-read-max", IOPS_FORM, default(0);
        /// how long such a burst may last (default 1)
        pub iops_read_max_length: u64 = "limits.iops-read-max-length", SECONDS_FORM, default(1);
        /// writes per second, discards among them (default 0)
        pub iops_write: u64 = "limits.iops-write", IOPS_FORM, default(0);
        /// the same in a burst (default 0)
        pub iops_write_max: u64 = "limits.iops-write-max", IOPS_FORM, default(0);
        /// how long such a burst may last (default 1)
        pub iops_write_max_length: u64 = "limits.iops-write-max-length", SECONDS_FORM, default(1);
        /// bytes read and written per second (default 0)
        pub bps_total: u64 = "limits.bps-total", BPS_FORM, default(0);
        /// the same in a burst (default 0)
        pub bps_total_max: u64 = "limits.bps-total-max", BPS_FORM, default(0);
        /// how long such a burst may last (default 1)
        pub bps_total_max_length: u64 = "limits.bps-total-max-length", SECONDS_FORM, default(1);
        /// bytes read per second (default 0)
        pub bps_read: u64 = "limits.bps-read", BPS_FORM, default(0);
        /// the same in a burst (default 0)
        pub bps_read_max: u64 = "limits.bps-read-max", BPS_FORM, default(0);
        /// how long such a burst may last (default 1)
        pub bps_read_max_length: u64 = "limits.bps-read-max-length", SECONDS_FORM, default(1);
        /// bytes written per second (default 0)
        pub bps_write: u64 = "limits.bps-write", BPS_FORM, default(0);
        /// the same in a burst (default 0)
        pub bps_write_max: u64 = "limits.bps-write-max", BPS_FORM, default(0);
        /// how long such a burst may last (default 1)
        pub bps_write_max_length: u64 = "limits.bps-write-max-length", SECONDS_FORM, default(1);
        /// a larger request counts as several operations, in proportion; 0 = each as one (default 0)
        pub iops_size: u64 = "limits.iops-size", BPS_FORM, default(0);
    }
    beside {
        /// the type; its key may be omitted
        "qom-type", "throttle-group", ValueType::Named("qom-type"), required;
    }
}

/// One limit of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLimit {
    /// Its name: `iops-total`.
    pub name: &'static str,
    /// Operations or bytes per second; 0: no limit.
    pub rate: u64,
    /// The same in a burst; 0: a burst of 0.1 s of the rate.
    pub burst_rate: u64,
    /// How long a burst may last, in seconds.
    pub burst_seconds: u64,
}

impl ThrottleGroupOptions {
    /// All limits: total, reads and writes, of operations first.
    #[must_use]
    pub fn limits(&self) -> [GroupLimit; 6] {
        let limit = |name, rate, burst_rate, burst_seconds| GroupLimit {
            name,
            rate,
            burst_rate,
            burst_seconds,
        };
        [
            limit(
                "iops-total",
                self.iops_total,
                self.iops_total_max,
                self.iops_total_max_length,
            ),
            limit(
                "iops-read",
                self.iops_read,
                self.iops_read_max,
                self.iops_read_max_length,
            ),
            limit(
                "iops-write",
                self.iops_write,
                self.iops_write_max,
                self.iops_write_max_length,
            ),
            limit(
                "bps-total",
                self.bps_total,
                self.bps_total_max,
                self.bps_total_max_length,
            ),
            limit(
                "bps-read",
                self.bps_read,
                self.bps_read_max,
                self.bps_read_max_length,
            ),
            limit(
                "bps-write",
                self.bps_write,
                self.bps_write_max,
                self.bps_write_max_length,
            ),
        ]
    }

    /// Checks combinations of limits, in QEMU's order and words.
    fn check_combinations(&self) -> Result<(), String> {
        let limits = self.limits();
        for unit in [&limits[3..], &limits[..3]] {
            check_total_excludes_parts(unit)?;
        }
        if self.iops_size > 0 && limits[..3].iter().all(|limit| limit.rate == 0) {
            return Err(
                "iops size requires an iops value to be set: 'limits.iops-size' needs 'limits.iops-total', \
                 'limits.iops-read' or 'limits.iops-write'"
                    .to_owned(),
            );
        }
        limits.iter().try_for_each(check_burst)
    }
}

/// Checks that there is no total limit beside one of reads or writes of the same unit; so for bursts.
fn check_total_excludes_parts(unit: &[GroupLimit]) -> Result<(), String> {
    let [total, parts @ ..] = unit else {
        return Ok(());
    };
    let part_beside_total = |value: fn(&GroupLimit) -> u64| {
        let part = parts.iter().find(|part| value(part) > 0);
        part.filter(|_| value(total) > 0)
    };
    let (part, suffix) = match part_beside_total(|limit| limit.rate) {
        Some(part) => (part, ""),
        None => match part_beside_total(|limit| limit.burst_rate) {
            Some(part) => (part, "-max"),
            None => return Ok(()),
        },
    };
    Err(format!(
        "bps/iops/max total values and read/write values cannot be used at the same time: leave out \
         'limits.{}{suffix}' or 'limits.{}{suffix}'",
        part.name, total.name
    ))
}

/// Checks that the burst of a limit fits its rate.
fn check_burst(limit: &GroupLimit) -> Result<(), String> {
    let GroupLimit {
        name,
        rate,
        burst_rate,
        burst_seconds,
    } = *limit;
    if burst_rate == 0 && burst_seconds > 1 {
        return Err(format!(
            "burst length set without burst rate: 'limits.{name}-max-length' needs 'limits.{name}-max'"
        ));
    }
    if burst_rate > 0 && burst_seconds > MAX_RATE / burst_rate {
        return Err(format!(
            "burst length too high for this burst rate: lower 'limits.{name}-max-length' to {} or less, or \
             'limits.{name}-max'",
            MAX_RATE / burst_rate
        ));
    }
    if burst_rate > 0 && rate == 0 {
        return Err(format!(
            "bps_max/iops_max require corresponding bps/iops values: 'limits.{name}-max' needs 'limits.{name}'"
        ));
    }
    if burst_rate > 0 && burst_rate < rate {
        return Err(format!(
            "bps_max/iops_max cannot be lower than bps/iops: raise 'limits.{name}-max' to {rate} or more, or leave it out"
        ));
    }
    Ok(())
}

/// Reads options of a throttle group. Keys that are not given are as in `base`.
pub(crate) fn read_throttle_group(
    object: Object,
    base: Option<&ThrottleGroupOptions>,
) -> Result<ThrottleGroupOptions, Problem> {
    let mut fields = Fields::with_known_keys(object, "", &[ThrottleGroupOptions::KEYS], &[])?;
    fields.take_raw("qom-type");
    let group = ThrottleGroupOptions::read(&mut fields, base)?;
    fields.debug_assert_all_taken();
    group
        .check_combinations()
        .map_err(|reason| Problem::Conflict { reason })?;
    Ok(group)
}
