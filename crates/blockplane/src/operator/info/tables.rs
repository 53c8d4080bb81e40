//! Tables of `blockplane info`: exports, nodes, iothreads and statistics, from the monitor's replies.

use std::collections::BTreeSet;

use serde_json::Value;

use super::InfoReplies;
use crate::operator::image::{image_name, image_state};
use crate::operator::table::ColumnAlign::{Left, Right};
use crate::operator::table::TextTable;
use crate::operator::units::{format_bytes, format_ns, format_with_thousands_separators};

/// Entries in the order of their creation: monitors reply with the newest first.
fn entries_oldest_first(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten().rev()
}

/// The entry whose member `key` is `value`.
fn find_entry<'a>(list: &'a Value, key: &str, value: &Value) -> Option<&'a Value> {
    list.as_array()?.iter().find(|entry| entry[key] == *value)
}

/// A value as text; empty without a value.
fn value_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A number as text; empty without a number.
fn number_text(value: &Value, format: fn(u64) -> String) -> String {
    value.as_u64().map(format).unwrap_or_default()
}

/// A truth value as text; empty without a value.
fn yes_no_text(value: &Value) -> String {
    let shown = value.as_bool().map(|yes| if yes { "yes" } else { "no" });
    shown.unwrap_or_default().to_owned()
}

/// The table of exports with their front-ends.
pub(super) fn exports_table(replies: &InfoReplies) -> String {
    let columns = [
        ("EXPORT", Left),
        ("NODE", Left),
        ("SIZE", Right),
        ("QUEUES", Right),
        ("FRONT-END", Left),
        ("IOTHREADS", Left),
        ("SOCKET", Left),
    ];
    let mut table = TextTable::new(&columns, "No exports: nothing can connect");
    for export in entries_oldest_first(&replies.exports) {
        let node = find_entry(&replies.nodes, "node-name", &export["node-name"]);
        let size = node.map_or(&Value::Null, |node| &node["image"]["virtual-size"]);
        let stats = find_entry(&replies.stats, "export", &export["id"]).unwrap_or(&Value::Null);
        let queues = stats["queues"].as_array();
        let front_end = match stats["connected"].as_bool() {
            _ if export["shutting-down"] == true => "ending",
            _ if export["io-status"] == "nospace" => "waits: disk full",
            _ if export["io-status"] == "failed" => "waits: disk error",
            Some(true) => "connected",
            Some(false) => "none",
            None => "",
        };
        let iothreads = queues
            .into_iter()
            .flatten()
            .filter_map(|queue| queue["iothread"].as_str());
        let iothreads: BTreeSet<&str> = iothreads.collect();
        table.add_row([
            value_text(&export["id"]),
            value_text(&export["node-name"]),
            number_text(size, format_bytes),
            queues
                .map(|queues| queues.len().to_string())
                .unwrap_or_default(),
            front_end.to_owned(),
            Vec::from_iter(iothreads).join(","),
            value_text(&export["socket"]),
        ]);
    }
    table.to_string()
}

/// The table of nodes.
pub(super) fn nodes_table(replies: &InfoReplies) -> String {
    let mut columns = vec![
        ("NODE", Left),
        ("DRIVER", Left),
        ("SIZE", Right),
        ("USED", Right),
        ("DIRECT", Left),
        ("WRITABLE", Left),
        ("FILE", Left),
    ];
    let has_images = entries_oldest_first(&replies.nodes).any(|node| node["rbd"].is_object());
    if has_images {
        columns.push(("STATE", Left));
    }
    let mut table = TextTable::new(&columns, "No nodes: there is nothing to export");
    for node in entries_oldest_first(&replies.nodes) {
        let writable = node["ro"].as_bool().map(|read_only| !read_only);
        let file = match node["drv"].as_str() {
            Some("rbd") => image_name(&node["rbd"]),
            _ => None,
        };
        let row = [
            value_text(&node["node-name"]),
            value_text(&node["drv"]),
            number_text(&node["image"]["virtual-size"], format_bytes),
            number_text(&node["image"]["actual-size"], format_bytes),
            yes_no_text(&node["cache"]["direct"]),
            yes_no_text(&writable.into()),
            file.unwrap_or_else(|| value_text(&node["file"])),
        ];
        let state = has_images.then(|| image_state(&node["rbd"]).unwrap_or_default());
        table.add_row(row.into_iter().chain(state));
    }
    table.to_string()
}

/// The table of iothreads with their settings and counters.
pub(super) fn iothreads_table(replies: &InfoReplies) -> String {
    let columns = [
        ("IOTHREAD", Left),
        ("TID", Right),
        ("POLL-MAX", Right),
        ("POLL-CPU-MAX", Right),
        ("AIO-MAX-BATCH", Right),
        ("CPUS", Left),
        ("CPU TIME", Right),
        ("MEAN BATCH", Right),
        ("POLL HITS", Right),
    ];
    let mut table = TextTable::new(&columns, "No iothreads: exports share a default one");
    for iothread in replies.iothreads.as_array().into_iter().flatten() {
        let stats = &iothread["stats"];
        let cpus = iothread["cpu-affinity"]
            .as_array()
            .map(|cpus| match cpus.len() {
                0 => "any".to_owned(),
                _ => cpus.iter().map(value_text).collect::<Vec<_>>().join(","),
            });
        let batch = ratio_of_json_numbers(&stats["requests-submitted"], &stats["submit-calls"]);
        let hits = ratio_of_json_numbers(&stats["poll-hits"], &stats["polls"]);
        let limit_text = |value: u64| {
            if value == 0 {
                "default".to_owned()
            } else {
                value.to_string()
            }
        };
        table.add_row([
            value_text(&iothread["id"]),
            value_text(&iothread["thread-id"]),
            number_text(&iothread["poll-max-ns"], format_ns),
            number_text(&iothread["poll-cpu-max"], |percent| format!("{percent} %")),
            number_text(&iothread["aio-max-batch"], limit_text),
            cpus.unwrap_or_default(),
            number_text(&stats["cpu-time-ns"], format_ns),
            batch.map(|batch| format!("{batch:.1}")).unwrap_or_default(),
            hits.map(|hits| format!("{:.0} %", 100.0 * hits))
                .unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// A quotient; `None` without a divisor.
fn ratio_of_json_numbers(dividend: &Value, divisor: &Value) -> Option<f64> {
    let divisor = divisor.as_f64().filter(|divisor| *divisor > 0.0)?;
    Some(dividend.as_f64()? / divisor)
}

/// The table of statistics: a row for each export and kind of requests.
pub(super) fn export_stats_table(replies: &InfoReplies) -> String {
    let columns = [
        ("EXPORT", Left),
        ("", Left),
        ("OPERATIONS", Right),
        ("DATA", Right),
        ("MEAN TIME", Right),
        ("MERGED", Right),
        ("FAILED", Right),
        ("INVALID", Right),
    ];
    let mut table = TextTable::new(&columns, "No exports: there are no counters");
    for export in replies.stats.as_array().into_iter().flatten() {
        let stats = &export["stats"];
        let mut name = value_text(&export["export"]);
        for (kind, shown) in [
            ("rd", "read"),
            ("wr", "write"),
            ("flush", "flush"),
            ("unmap", "discard"),
        ] {
            let counter = |key: String| &stats[key];
            let operations = counter(format!("{kind}_operations"));
            let mean = ratio_of_json_numbers(counter(format!("{kind}_total_time_ns")), operations);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "rounded, for people"
            )]
            let mean = mean.map(|ns| format_ns(ns.round() as u64));
            table.add_row([
                std::mem::replace(&mut name, " ".to_owned()),
                shown.to_owned(),
                number_text(operations, format_with_thousands_separators),
                number_text(counter(format!("{kind}_bytes")), format_bytes),
                mean.unwrap_or_default(),
                number_text(
                    counter(format!("{kind}_merged")),
                    format_with_thousands_separators,
                ),
                number_text(
                    counter(format!("failed_{kind}_operations")),
                    format_with_thousands_separators,
                ),
                number_text(
                    counter(format!("invalid_{kind}_operations")),
                    format_with_thousands_separators,
                ),
            ]);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Replies of a monitor with two exports, two nodes and an iothread.
    fn replies() -> InfoReplies {
        InfoReplies {
            exports: json!([
                {"id": "e1", "node-name": "d1", "type": "vhost-user-blk", "shutting-down": true, "socket": "/run/e1"},
                {"id": "e0", "node-name": "d0", "type": "vhost-user-blk", "shutting-down": false, "socket": "/run/e0"},
            ]),
            nodes: json!([
                {"node-name": "d1", "drv": "null-co", "ro": true, "cache": {"direct": false},
                    "image": {"virtual-size": 1 << 30}, "file": "null-co://"},
                {"node-name": "d0", "drv": "file", "ro": false, "cache": {"direct": true},
                    "image": {"virtual-size": 10_u64 << 30, "actual-size": 1 << 20}, "file": "d0.img"},
            ]),
            iothreads: json!([{"id": "io0", "thread-id": 7, "poll-max-ns": 200_000, "poll-cpu-max": 90,
                "aio-max-batch": 0, "cpu-affinity": [0, 2], "stats": {"cpu-time-ns": 1_500_000_000,
                "requests-submitted": 160, "submit-calls": 10, "polls": 4, "poll-hits": 3}}]),
            stats: json!([{"export": "e0", "connected": true,
                "queues": [{"index": 0, "iothread": "io0"}, {"index": 1, "iothread": "io0"}],
                "stats": {"rd_operations": 1200, "rd_bytes": 1200 * 4096, "rd_total_time_ns": 1200 * 20_000,
                    "rd_merged": 3, "failed_rd_operations": 1, "invalid_rd_operations": 0,
                    "flush_operations": 0, "flush_total_time_ns": 0}}]),
        }
    }

    #[test]
    fn tables_list_entries_in_the_order_of_creation() {
        let expected = "\
EXPORT  NODE    SIZE  QUEUES  FRONT-END  IOTHREADS  SOCKET
e0      d0    10 GiB       2  connected  io0        /run/e0
e1      d1     1 GiB       -  ending     -          /run/e1
";
        assert_eq!(exports_table(&replies()), expected);
        let expected = "\
NODE  DRIVER     SIZE   USED  DIRECT  WRITABLE  FILE
d0    file     10 GiB  1 MiB  yes     yes       d0.img
d1    null-co   1 GiB      -  no      no        null-co://
";
        assert_eq!(nodes_table(&replies()), expected);
        let expected = "\
IOTHREAD  TID  POLL-MAX  POLL-CPU-MAX  AIO-MAX-BATCH  CPUS  CPU TIME  MEAN BATCH  POLL HITS
io0         7    200 us          90 %        default  0,2      1.5 s        16.0       75 %
";
        assert_eq!(iothreads_table(&replies()), expected);
        let expected = "\
EXPORT           OPERATIONS      DATA  MEAN TIME  MERGED  FAILED  INVALID
e0      read          1,200  4.69 MiB      20 us       3       1        0
        write             -         -          -       -       -        -
        flush             0         -          -       -       -        -
        discard           -         -          -       -       -        -
";
        assert_eq!(export_stats_table(&replies()), expected);
    }

    #[test]
    fn images_have_their_name_and_a_state_and_parked_requests_their_reason() {
        let mut replies = replies();
        replies.nodes[1] = json!({"node-name": "d0", "drv": "rbd", "ro": false, "cache": {"direct": false},
            "image": {"virtual-size": 1 << 30}, "file": "json:{}",
            "rbd": {"pool": "vms", "image": "disk", "state": "connected", "lock": "held"}});
        let expected = "\
NODE  DRIVER    SIZE  USED  DIRECT  WRITABLE  FILE          STATE
d0    rbd      1 GiB     -  no      yes       rbd:vms/disk  connected, lock held
d1    null-co  1 GiB     -  no      no        null-co://    -
";
        assert_eq!(nodes_table(&replies), expected);
        for (status, shown) in [
            ("ok", "connected"),
            ("nospace", "waits: disk full"),
            ("failed", "waits: disk error"),
        ] {
            replies.exports[1]["io-status"] = status.into();
            let table = exports_table(&replies);
            assert!(table.lines().nth(1).unwrap().contains(shown), "{table}");
        }
    }

    #[test]
    fn values_that_the_monitor_does_not_report_are_dashes() {
        let replies = InfoReplies {
            exports: json!([{"id": "e", "node-name": "gone"}]),
            ..InfoReplies::default()
        };
        let table = exports_table(&replies);
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["e", "gone", "-", "-", "-", "-", "-"]);
        let table = replies.format_table(super::super::TableKind::Nodes);
        assert_eq!(table, "This monitor does not report nodes\n");
    }
}
