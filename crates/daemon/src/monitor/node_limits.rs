//! The limits of a throttled node in the result of `query-named-block-nodes`, with QEMU's names and its rule for what is shown:
//! rates always, bursts and their lengths if there are any.

use block::{LimitKind, ThrottleGroup};
use qmp::{Member, Type};
use serde_json::Value;

/// The names of a limit, of its burst, and of the length of the burst.
fn names(kind: LimitKind) -> [&'static str; 3] {
    match kind {
        LimitKind::IopsTotal => ["iops", "iops_max", "iops_max_length"],
        LimitKind::IopsRead => ["iops_rd", "iops_rd_max", "iops_rd_max_length"],
        LimitKind::IopsWrite => ["iops_wr", "iops_wr_max", "iops_wr_max_length"],
        LimitKind::BpsTotal => ["bps", "bps_max", "bps_max_length"],
        LimitKind::BpsRead => ["bps_rd", "bps_rd_max", "bps_rd_max_length"],
        LimitKind::BpsWrite => ["bps_wr", "bps_wr_max", "bps_wr_max_length"],
    }
}

/// Members of `BlockDeviceInfo` that only throttled nodes have.
pub(super) fn optional_members() -> Vec<Member> {
    let bursts = LimitKind::ALL.into_iter().flat_map(|kind| {
        let [_, burst, length] = names(kind);
        [burst, length]
    });
    let numbers = bursts.chain(["iops_size"]);
    let mut members: Vec<Member> = numbers
        .map(|name| Member::optional(name, Type::Int))
        .collect();
    members.push(Member::optional("group", Type::Str));
    members
}

/// Adds the limits of a node's group to its `BlockDeviceInfo`.
pub(super) fn add_limits(group: &ThrottleGroup, info: &mut Value) {
    let limits = group.limits();
    for kind in LimitKind::ALL {
        let (limit, [rate, burst, length]) = (limits.rate(kind), names(kind));
        info[rate] = limit.rate.into();
        if limit.burst_rate > 0 {
            info[burst] = limit.burst_rate.into();
            info[length] = limit.burst_seconds.into();
        }
    }
    if limits.iops_size > 0 {
        info["iops_size"] = limits.iops_size.into();
    }
    info["group"] = group.name().into();
}
