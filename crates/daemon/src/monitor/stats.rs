//! The QMP command `query-blockstats`: statistics of exports, their queues and LUNs, and nodes.

mod luns;
pub(super) mod throttles;
mod totals;

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use qmp::{Arguments, Command, CommandHandler, Member, ObjectType, Type, TypeDefinition};
use serde_json::{Map, Value, json};
use telemetry::counters::Scale;
use telemetry::queue::QueueStats;

use super::histograms;
use super::images::image_info;
use crate::control::MainThread;
use crate::state::DaemonObjects;
use crate::state::export::Export;
use crate::state::node::OpenNode;
use totals::QueueTotals;

/// The command for statistics.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "query-blockstats",
        arguments: ObjectType::with_members(vec![Member::optional("query-nodes", Type::Bool)]),
        returns: Some(Type::list_of_named("BlockStats")),
        run: CommandHandler::InBand(|control, arguments| {
            Ok(query_blockstats(&control.objects, arguments))
        }),
    }]
}

/// Types of its result.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let stats = || Member::required("stats", Type::Named("BlockDeviceStats"));
    let queue = ObjectType::with_members(vec![
        Member::required("index", Type::Int),
        Member::required("iothread", Type::Str),
        Member::required("running", Type::Bool),
        Member::required("size", Type::Int),
        Member::required("depth", Type::Int),
        Member::required("turns", Type::Int),
        Member::required("notifications", Type::Int),
        stats(),
        Member::required("latency", Type::Named("BlockLatencies")),
    ]);
    let entry = ObjectType::with_members(vec![
        Member::optional("export", Type::Str),
        Member::optional("device", Type::Str),
        Member::optional("node-name", Type::Str),
        Member::optional("connected", Type::Bool),
        stats(),
        Member::optional("queues", Type::list_of_named("BlockQueueStats")),
        Member::optional("luns", Type::list_of_named("BlockLunStats")),
        Member::optional("parent", Type::Named("BlockStats")),
        Member::optional("rbd", Type::Named("BlockImageInfo")),
        Member::optional("throttle", Type::list_of_named("BlockThrottleStats")),
    ]);
    let mut definitions = totals::qmp_type_definitions();
    definitions.extend(throttles::qmp_type_definitions());
    definitions.push(("BlockQueueStats", TypeDefinition::Object(queue)));
    definitions.push((
        "BlockLunStats",
        TypeDefinition::Object(luns::lun_stats_type()),
    ));
    definitions.push(("BlockStats", TypeDefinition::Object(entry)));
    definitions
}

/// `query-blockstats`: `BlockStats` of all exports, or with `query-nodes` of all nodes.
fn query_blockstats(objects: &DaemonObjects, arguments: &Arguments) -> Value {
    if arguments.get("query-nodes") == Some(&Value::Bool(true)) {
        let scale = Scale::measure();
        let nodes = objects.nodes.iter();
        return nodes
            .map(|open| stats_of_node(open, objects, scale))
            .collect();
    }
    stats_of_exports(objects).into()
}

/// `BlockStats` of all exports, in the order of their creation.
pub(super) fn stats_of_exports(objects: &DaemonObjects) -> Vec<Value> {
    let scale = Scale::measure();
    let disks = disk_members_of_nodes(&objects.nodes);
    let exports = objects.exports.iter();
    exports
        .map(|export| stats_of_export(export, &disks, scale))
        .collect()
}

/// Members of `BlockStats` and `BlockLunStats` about the disk behind a node, by node.
type DiskMembers<'a> = HashMap<&'a str, Map<String, Value>>;

/// The members about the disks behind all nodes.
fn disk_members_of_nodes(nodes: &[OpenNode]) -> DiskMembers<'_> {
    let members = nodes.iter().map(|OpenNode { node, .. }| {
        let image = node.image_status().map(|status| image_info(&status));
        let members = [
            ("rbd", image),
            ("throttle", throttles::stats_of_chains([&**node])),
        ];
        let known = members
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        (node.name(), known.collect())
    });
    members.collect()
}

/// Adds the members about a node's disk to an entry.
fn add_disk_members(disks: &DiskMembers<'_>, node: &str, entry: &mut Value) {
    for (name, value) in disks.get(node).into_iter().flatten() {
        entry[name] = value.clone();
    }
}

/// `BlockStats` of an export.
fn stats_of_export(export: &Export, disks: &DiskMembers<'_>, scale: Scale) -> Value {
    let figures = &export.stats;
    let queues = figures.queues.iter().enumerate();
    let queues: Vec<Value> = queues
        .map(|(index, queue)| {
            let stats = &queue.stats;
            let size = stats.queue_size().get();
            json!({
                "index": index,
                "iothread": queue.iothread,
                "running": size > 0,
                "size": if size > 0 { size } else { figures.queue_size.into() },
                "depth": stats.in_flight().get(),
                "turns": stats.turns().get(),
                "notifications": stats.notifications().get(),
                "stats": sum_queues_with_histograms_to_json([&**stats].into_iter(), scale),
                "latency": totals::latencies_to_json([&**stats].into_iter(), scale),
            })
        })
        .collect();
    let mut entry = json!({
        "export": export.options.id,
        "device": "",
        "node-name": export.options.node_name,
        "connected": figures.connected.load(Ordering::Relaxed),
        "stats": sum_queues_with_histograms_to_json(figures.queues.iter().map(|queue| &*queue.stats), scale),
        "queues": queues,
    });
    add_disk_members(disks, &export.options.node_name, &mut entry);
    if let Some(luns) = luns::stats_of_luns(export, disks, scale) {
        entry["luns"] = luns.into();
    }
    entry
}

/// `BlockDeviceStats` of some queues of one export together, with their histograms.
fn sum_queues_with_histograms_to_json<'a>(
    queues: impl Iterator<Item = &'a QueueStats> + Clone,
    scale: Scale,
) -> Value {
    let mut stats = QueueTotals::sum_queues(queues.clone()).to_json(scale);
    histograms::add_histograms_to_stats(queues, &mut stats);
    stats
}

/// `BlockStats` of a node, with its child as `parent`, as QEMU calls it. Counters are those of the exports and LUNs that
/// use the node.
fn stats_of_node(open: &OpenNode, objects: &DaemonObjects, scale: Scale) -> Value {
    let name = open.node.name();
    let exports = objects.exports.iter();
    let counters = exports.flat_map(|export| luns::export_stats_of_node(export, name));
    let mut entry = json!({
        "stats": QueueTotals::sum_queues(counters).to_json(scale),
        "node-name": name,
    });
    let below = open.child_node_name().unwrap_or_default();
    if let Some(below) = objects
        .nodes
        .iter()
        .find(|found| found.node.name() == below)
    {
        entry["parent"] = stats_of_node(below, objects, scale);
    }
    entry
}
