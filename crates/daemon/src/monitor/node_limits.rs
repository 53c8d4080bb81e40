//! The limits of a throttled node in the results of `query-named-block-nodes` and the HMP command `info block`, with QEMU's names
//! and its rule for what is shown: rates always, bursts and their lengths if there are any; in lines for people no lengths.

use block::{LimitKind, Node, ThrottleGroup};
use qmp::{Member, Type};
use serde_json::{Value, json};

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

/// What a line of `info block` has, in QEMU's order.
const HMP_NUMBERS: [&str; 13] = [
    "bps",
    "bps_rd",
    "bps_wr",
    "bps_max",
    "bps_rd_max",
    "bps_wr_max",
    "iops",
    "iops_rd",
    "iops_wr",
    "iops_max",
    "iops_rd_max",
    "iops_wr_max",
    "iops_size",
];

/// Lines of `info block` about the limits of all groups that a node's requests pass, from the top. Groups without limits have none.
pub(super) fn hmp_lines(node: &Node) -> String {
    let groups = node.throttles().map(|(_, member)| member.group());
    let limited = groups.filter(|group| {
        let limits = group.limits();
        LimitKind::ALL
            .iter()
            .any(|kind| limits.rate(*kind).rate > 0)
    });
    let lines = limited.map(|group| {
        let mut info = json!({});
        add_limits(group, &mut info);
        let number = |name: &&str| format!("{name}={}", info[*name].as_u64().unwrap_or(0));
        let numbers: Vec<String> = HMP_NUMBERS.iter().map(number).collect();
        let numbers = numbers.join(" ");
        format!("    I/O throttling:   {numbers} group={}\n", group.name())
    });
    lines.collect()
}
