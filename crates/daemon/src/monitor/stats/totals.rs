//! Sums of the statistics of several queues, and their conversion to QEMU's `BlockDeviceStats` and to latency histograms.

use qmp::{Member, ObjectType, Type, TypeDefinition};
use serde_json::{Map, Value, json};
use telemetry::counters::{Histogram, Scale, TickClock};
use telemetry::queue::{QueueStats, RequestKind};

use crate::monitor::histograms;

/// Prefix of QEMU's members for a kind of request.
fn qemu_member_prefix(kind: RequestKind) -> &'static str {
    match kind {
        RequestKind::Read => "rd",
        RequestKind::Write => "wr",
        RequestKind::Flush => "flush",
        RequestKind::Unmap => "unmap",
    }
}

/// Sums for requests of one kind.
#[derive(Clone, Copy, Default)]
struct RequestKindTotals {
    operations: u64,
    bytes: u64,
    ticks: u64,
    merged: u64,
    failed: u64,
    invalid: u64,
}

/// Sums over several queues.
#[derive(Default)]
pub(super) struct QueueTotals {
    kinds: [RequestKindTotals; 4],
    highest_offset: u64,
    last_success_ticks: u64,
}

impl QueueTotals {
    /// Adds up the statistics of queues.
    pub fn sum_queues<'a>(queues: impl IntoIterator<Item = &'a QueueStats>) -> Self {
        let mut sum = QueueTotals::default();
        for queue in queues {
            for (kind, sum) in RequestKind::ALL.into_iter().zip(&mut sum.kinds) {
                let stats = queue.of_kind(kind);
                sum.operations += stats.latency.total();
                sum.bytes += stats.bytes.get();
                sum.ticks = sum.ticks.saturating_add(stats.ticks.get());
                sum.merged += stats.merged.get();
                sum.failed += stats.failed.get();
                sum.invalid += stats.invalid.get();
            }
            sum.highest_offset = sum.highest_offset.max(queue.wr_highest_offset().get());
            sum.last_success_ticks = sum.last_success_ticks.max(queue.last_success_ticks().get());
        }
        sum
    }

    /// Converts the sums to `BlockDeviceStats`.
    pub fn to_json(&self, scale: Scale) -> Value {
        let mut members = Map::new();
        for (kind, sum) in RequestKind::ALL.into_iter().zip(&self.kinds) {
            let prefix = qemu_member_prefix(kind);
            let mut add = |name: String, value: u64| {
                members.insert(name, value.into());
            };
            // Flushes have no bytes and are never merged.
            if kind != RequestKind::Flush {
                add(format!("{prefix}_bytes"), sum.bytes);
                add(format!("{prefix}_merged"), sum.merged);
            }
            add(format!("{prefix}_operations"), sum.operations);
            add(format!("{prefix}_total_time_ns"), scale.to_ns(sum.ticks));
            add(format!("failed_{prefix}_operations"), sum.failed);
            add(format!("invalid_{prefix}_operations"), sum.invalid);
        }
        members.insert("wr_highest_offset".into(), self.highest_offset.into());
        if self.last_success_ticks > 0 {
            let idle = TickClock::of_process()
                .now()
                .saturating_sub(self.last_success_ticks);
            members.insert("idle_time_ns".into(), scale.to_ns(idle).into());
        }
        members.insert("account_invalid".into(), false.into());
        members.insert("account_failed".into(), false.into());
        members.insert("timed_stats".into(), json!([]));
        members.into()
    }
}

/// `BlockLatencies` of queues: latency histograms by kind of request.
pub(super) fn latencies_to_json<'a>(
    queues: impl Iterator<Item = &'a QueueStats> + Clone,
    scale: Scale,
) -> Value {
    let kinds = RequestKind::ALL.into_iter();
    let members = kinds.map(|kind| {
        let counts = Histogram::nonempty_buckets_of_sum(
            queues.clone().map(|queue| &queue.of_kind(kind).latency),
        );
        let counts = counts.into_iter();
        let counts = counts.map(|(end, count)| (scale.to_ns(end), count));
        (kind.name().to_owned(), histogram_to_json(counts))
    });
    Value::Object(members.collect())
}

/// `BlockLatency` of a histogram: the ends of its buckets in nanoseconds, and their counts.
pub(super) fn histogram_to_json(counts: impl Iterator<Item = (u64, u64)>) -> Value {
    let (bounds, counts): (Vec<u64>, Vec<u64>) = counts.unzip();
    json!({"bounds": bounds, "counts": counts})
}

/// The type `BlockDeviceStats`, and the types of latencies.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let ints = || Type::List(Box::new(Type::Int));
    let latency = ObjectType::with_members(vec![
        Member::required("bounds", ints()),
        Member::required("counts", ints()),
    ]);
    let kinds =
        RequestKind::ALL.map(|kind| Member::required(kind.name(), Type::Named("BlockLatency")));
    let mut stats: Vec<Member> = INTEGER_MEMBERS
        .iter()
        .map(|name| Member::required(name, Type::Int))
        .collect();
    stats.push(Member::optional("idle_time_ns", Type::Int));
    stats.extend(histograms::histogram_member_schema());
    stats.push(Member::required("account_invalid", Type::Bool));
    stats.push(Member::required("account_failed", Type::Bool));
    stats.push(Member::required(
        "timed_stats",
        Type::List(Box::new(Type::Any)),
    ));
    vec![
        (
            "BlockLatency",
            TypeDefinition::Object(ObjectType::with_members(latency.members)),
        ),
        (
            "BlockLatencies",
            TypeDefinition::Object(ObjectType::with_members(kinds.into())),
        ),
        (
            "BlockDeviceStats",
            TypeDefinition::Object(ObjectType::with_members(stats)),
        ),
    ]
}

/// Integer members that [`QueueTotals::to_json`] always writes.
const INTEGER_MEMBERS: [&str; 23] = [
    "rd_bytes",
    "rd_merged",
    "rd_operations",
    "rd_total_time_ns",
    "failed_rd_operations",
    "invalid_rd_operations",
    "wr_bytes",
    "wr_merged",
    "wr_operations",
    "wr_total_time_ns",
    "failed_wr_operations",
    "invalid_wr_operations",
    "flush_operations",
    "flush_total_time_ns",
    "failed_flush_operations",
    "invalid_flush_operations",
    "unmap_bytes",
    "unmap_merged",
    "unmap_operations",
    "unmap_total_time_ns",
    "failed_unmap_operations",
    "invalid_unmap_operations",
    "wr_highest_offset",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn described_members_are_those_of_the_schema() {
        let stats = QueueTotals::default().to_json(Scale::measure());
        let described: Vec<&str> = stats
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let others = ["account_invalid", "account_failed", "timed_stats"];
        let declared: Vec<&str> = INTEGER_MEMBERS.into_iter().chain(others).collect();
        assert_eq!(described, declared);
    }
}
