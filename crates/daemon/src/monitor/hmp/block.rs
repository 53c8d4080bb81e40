//! The HMP command `info block`: shows exports, as devices, and nodes.

use serde_json::Value;

use super::HmpArgs;
use crate::control::MainThread;
use crate::monitor::images::hmp_lines;
use crate::monitor::node_filenames::qemu_filenames_of_nodes;
use crate::monitor::node_limits;
use crate::monitor::nodes::block_device_info;
use crate::state::export::Export;
use crate::state::node::OpenNode;

/// Exports with their nodes; with `-n` all nodes; with a name only that export or node.
pub(super) fn show_block_devices(control: &MainThread, args: &HmpArgs<'_>) -> String {
    let objects = &control.objects;
    let verbose = args.has_flag('v');
    let filenames = qemu_filenames_of_nodes(&objects.nodes);
    let format = |export: Option<&str>, open: &OpenNode| {
        let limits = node_limits::hmp_lines(&open.node);
        let info = block_device_info(open, &filenames);
        format_node(export, &info, &limits, verbose)
    };
    let text_of_export = |export: &Export| {
        let node = objects.find_node(&export.options.node_name);
        node.map(|node| format(Some(&export.options.id), node))
    };
    let name = args.positional.first();
    let is_wanted = |found: &str| name.is_none_or(|name| found == *name);
    let exports = objects.exports.iter().rev();
    let exports = exports
        .filter(|export| !args.has_flag('n') && is_wanted(&export.options.id))
        .filter_map(text_of_export);
    let nodes = objects.nodes.iter().rev();
    let nodes = nodes
        .filter(|node| (args.has_flag('n') || name.is_some()) && is_wanted(node.node.name()))
        .map(|node| format(None, node));
    exports.chain(nodes).collect::<Vec<String>>().join("\n")
}

/// Text of a node, whose `BlockDeviceInfo` is `node`; with the id of the export that shows it, if it was found by that. `limits` are
/// lines about those of the node.
fn format_node(export: Option<&str>, node: &Value, limits: &str, verbose: bool) -> String {
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let (name, file, driver) = (
        text(&node["node-name"]),
        text(&node["file"]),
        text(&node["drv"]),
    );
    let read_only = if node["ro"] == true {
        ", read-only"
    } else {
        ""
    };
    let mut out = match export {
        None => format!("{name}: {file} ({driver}{read_only})\n"),
        Some(id) => format!(
            "{id} ({name}): {file} ({driver}{read_only})\n    Attached to:      /exports/{id}\n"
        ),
    };
    out += "    Cache mode:       writeback";
    for (key, text) in [("direct", ", direct"), ("no-flush", ", ignore flushes")] {
        if node["cache"][key] == true {
            out += text;
        }
    }
    out += "\n";
    out += limits;
    if node["rbd"].is_object() {
        out += &hmp_lines(&node["rbd"]);
    }
    if verbose {
        let image = &node["image"];
        let bytes = |name: &str| image[name].as_u64();
        let virtual_size = bytes("virtual-size").unwrap_or_default();
        let disk_size = bytes("actual-size").map_or("unavailable".to_owned(), format_size);
        out += &format!(
            "\nImages:\nimage: {file}\nfile format: {driver}\nvirtual size: {} ({virtual_size} bytes)\ndisk size: {disk_size}\n",
            format_size(virtual_size),
        );
    }
    out
}

/// A size with three significant digits and a unit: `1.5 GiB`.
fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while value >= 999.5 {
        value /= 1024.0;
        unit = units.next();
    }
    let decimals = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    let digits = format!("{value:.decimals$}");
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => &digits,
    };
    format!("{digits} {}", unit.unwrap_or(&"EiB"))
}

#[cfg(test)]
mod tests {
    use super::format_size;

    #[test]
    fn sizes_have_three_significant_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1000, "0.977 KiB"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (65_536, "64 KiB"),
            (100 << 20, "100 MiB"),
            (1 << 30, "1 GiB"),
            (1_099_511_627_776, "1 TiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}
