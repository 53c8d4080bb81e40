//! The HMP command `info blockstats`: shows statistics of exports.

use serde_json::Value;

use super::HmpArgs;
use crate::control::MainThread;
use crate::monitor::stats;

/// Members of `BlockDeviceStats` to show, in this order.
const SHOWN_MEMBERS: [&str; 11] = [
    "rd_bytes",
    "wr_bytes",
    "rd_operations",
    "wr_operations",
    "flush_operations",
    "wr_total_time_ns",
    "rd_total_time_ns",
    "flush_total_time_ns",
    "rd_merged",
    "wr_merged",
    "idle_time_ns",
];

/// A line for each export.
pub(super) fn show_block_statistics(control: &MainThread, _: &HmpArgs<'_>) -> String {
    let exports = stats::stats_of_exports(&control.objects);
    exports.iter().map(format_export_stats).collect()
}

/// The line of an export, whose `BlockStats` is `export`.
fn format_export_stats(export: &Value) -> String {
    let mut line = format!("{}:", export["export"].as_str().unwrap_or_default());
    for name in SHOWN_MEMBERS {
        // `idle_time_ns` is missing before the first request; QEMU shows 0.
        let value = export["stats"][name].as_u64().unwrap_or_default();
        line += &format!(" {name}={value}");
    }
    line + "\n"
}
