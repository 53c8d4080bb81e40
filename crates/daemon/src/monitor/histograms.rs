//! Latency histograms as in QEMU: the QMP command `block-latency-histogram-set`, and their members in the result of `query-blockstats`.

use std::sync::Arc;

use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, Type, TypeDefinition};
use serde_json::{Value, json};
use telemetry::counters::{BinBoundaries, Scale};
use telemetry::queue::{QueueStats, RequestKind};

use super::str_arg_or_empty;
use crate::control::MainThread;
use crate::state::DaemonObjects;

/// Kinds of requests that have histograms, in the order in which they are set, each with its argument of the command and
/// its member of `BlockDeviceStats`.
const KINDS_WITH_HISTOGRAMS: [(RequestKind, &str, &str); 3] = [
    (RequestKind::Read, "boundaries-read", "rd_latency_histogram"),
    (
        RequestKind::Write,
        "boundaries-write",
        "wr_latency_histogram",
    ),
    (
        RequestKind::Flush,
        "boundaries-flush",
        "flush_latency_histogram",
    ),
];

/// The command that sets histograms.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    let lists = ["boundaries"]
        .into_iter()
        .chain(KINDS_WITH_HISTOGRAMS.map(|kind| kind.1));
    let mut arguments = vec![Member::required("id", Type::Str)];
    arguments
        .extend(lists.map(|name| Member::optional(name, Type::List(Box::new(Type::Unsigned)))));
    vec![Command {
        name: "block-latency-histogram-set",
        arguments: ObjectType::with_members(arguments),
        returns: None,
        run: CommandHandler::InBand(|control, arguments| {
            set_or_remove_histograms(&control.objects, arguments)?;
            Ok(json!({}))
        }),
    }]
}

/// The type `BlockLatencyHistogramInfo`.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let number_list = || Type::List(Box::new(Type::Unsigned));
    let members = ["boundaries", "bins"].map(|name| Member::required(name, number_list()));
    let object = ObjectType::with_members(members.into());
    vec![("BlockLatencyHistogramInfo", TypeDefinition::Object(object))]
}

/// Schema of the histogram members of `BlockDeviceStats`.
pub(super) fn histogram_member_schema() -> [Member; 3] {
    KINDS_WITH_HISTOGRAMS
        .map(|(.., member)| Member::optional(member, Type::Named("BlockLatencyHistogramInfo")))
}

/// `block-latency-histogram-set`: starts new histograms of an export, or removes all of them.
fn set_or_remove_histograms(objects: &DaemonObjects, arguments: &Arguments) -> Result<(), Error> {
    let id = str_arg_or_empty(arguments, "id");
    let mut exports = objects.exports.iter();
    let export = exports
        .find(|export| export.options.id == id)
        .ok_or_else(|| Error::device_not_found(format!("Device '{id}' not found")))?;
    let queues = || export.stats.queues.iter().map(|queue| &queue.stats);
    if arguments.len() == 1 {
        for (stats, (kind, ..)) in
            queues().flat_map(|stats| KINDS_WITH_HISTOGRAMS.map(|kind| (stats, kind)))
        {
            stats
                .configured_histograms()
                .replace_or_remove_bins_of_kind(kind, None);
        }
        return Ok(());
    }
    let scale = Scale::measure();
    for (kind, argument, _) in KINDS_WITH_HISTOGRAMS {
        let own_list = arguments.get(argument);
        let Some(list) = own_list.or_else(|| arguments.get("boundaries")) else {
            continue;
        };
        // QEMU's message, with the cause.
        let boundaries = BinBoundaries::new(json_list_to_u64s(list), scale).map_err(|error| {
            let kind = kind.name();
            Error::generic(format!("Device '{id}' set {kind} boundaries fail: {error}"))
        })?;
        let boundaries = Arc::new(boundaries);
        for stats in queues() {
            stats
                .configured_histograms()
                .replace_or_remove_bins_of_kind(kind, Some(boundaries.clone()));
        }
    }
    Ok(())
}

/// Converts a JSON list of integers. Their type was checked before, their values are not checked here; negative ones wrap.
fn json_list_to_u64s(list: &Value) -> Vec<u64> {
    let items = list.as_array().into_iter().flatten();
    let number = |item: &Value| {
        let negative = item.as_i64().map(i64::cast_unsigned);
        item.as_u64().or(negative)
    };
    items.filter_map(number).collect()
}

/// Adds the histograms of queues of one export to their `stats`, if any are set.
pub(super) fn add_histograms_to_stats<'a>(
    queues: impl Iterator<Item = &'a QueueStats> + Clone,
    stats: &mut Value,
) {
    for (kind, _, member) in KINDS_WITH_HISTOGRAMS {
        let queues = queues.clone();
        let bins: Vec<_> = queues
            .filter_map(|q| q.configured_histograms().bins_of_kind(kind))
            .collect();
        let Some(first) = bins.first() else {
            continue;
        };
        let boundaries = first.bin_boundaries().ns();
        let mut sums = vec![0_u64; boundaries.len() + 1];
        for counts in bins.iter().map(|bins| bins.counts()) {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        stats[member] = json!({"boundaries": boundaries, "bins": sums});
    }
}
