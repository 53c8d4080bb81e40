//! `BlockThrottleStats`: requests that wait at the throttled nodes of disks, in the results of `query-blockstats` and
//! `query-block-exports`.

use block::{LimitKind, Node};
use qmp::{Member, ObjectType, Type, TypeDefinition};
use serde_json::{Map, Value, json};

use super::totals::histogram_to_json;

/// The type, with that of its member.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let stats = ObjectType::with_members(vec![
        Member::required("node-name", Type::Str),
        Member::required("group", Type::Str),
        Member::required("waiting", Type::Int),
        Member::required("waited", Type::Int),
        Member::required("waited-ns", Type::Int),
        Member::required("waits", Type::Named("BlockLatency")),
        Member::required("limit-hits", Type::Named("BlockThrottleLimitHits")),
    ]);
    let hits = LimitKind::ALL.map(|kind| Member::required(kind.name(), Type::Int));
    let hits = ObjectType::with_members(hits.into());
    vec![
        ("BlockThrottleStats", TypeDefinition::Object(stats)),
        ("BlockThrottleLimitHits", TypeDefinition::Object(hits)),
    ]
}

/// `BlockThrottleStats` of all throttled nodes that the requests of these nodes pass, from the top of each; `None` if there are
/// none.
pub(in crate::monitor) fn stats_of_chains<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Option<Value> {
    let throttles: Vec<Value> = nodes
        .into_iter()
        .flat_map(Node::throttles)
        .map(|(node, member)| {
            let stats = member.stats();
            let hits = LimitKind::ALL.map(|kind| {
                let hits = stats.limit_hits(kind);
                (kind.name().to_owned(), hits.into())
            });
            json!({
                "node-name": node.name(),
                "group": member.group().name(),
                "waiting": stats.waiting(),
                "waited": stats.waits().total(),
                "waited-ns": stats.waited_ns(),
                "waits": histogram_to_json(stats.waits().nonempty_buckets()),
                "limit-hits": Map::from_iter(hits),
            })
        })
        .collect();
    (!throttles.is_empty()).then(|| throttles.into())
}
