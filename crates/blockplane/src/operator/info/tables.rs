//! Tables of `blockplane info`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Replies;
use crate::operator::table::Align::{Left, Right};
use crate::operator::table::Table;
use crate::operator::units::{format_bytes, format_count, format_ns};

/// Entries in the order of their creation: monitors reply with the newest first.
fn oldest_first(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten().rev()
}

/// The entry whose member `key` is `value`.
fn find<'a>(list: &'a Value, key: &str, value: &Value) -> Option<&'a Value> {
    list.as_array()?.iter().find(|entry| entry[key] == *value)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A number as text; empty without a number.
fn figure(value: &Value, how: fn(u64) -> String) -> String {
    value.as_u64().map(how).unwrap_or_default()
}

fn yes_no(value: &Value) -> String {
    let shown = value.as_bool().map(|yes| if yes { "yes" } else { "no" });
    shown.unwrap_or_default().to_owned()
}

pub(super) fn exports(replies: &Replies) -> String {
    let columns = [
        ("EXPORT", Left),
        ("NODE", Left),
        ("SIZE", Right),
        ("QUEUES", Right),
        ("FRONT-END", Left),
        ("IOTHREADS", Left),
        ("SOCKET", Left),
    ];
    let mut table = Table::new(&columns, "No exports: nothing can connect");
    for export in oldest_first(&replies.exports) {
        let node = find(&replies.nodes, "node-name", &export["node-name"]);
        let size = node.map_or(&Value::Null, |node| &node["image"]["virtual-size"]);
        let stats = find(&replies.stats, "export", &export["id"]).unwrap_or(&Value::Null);
        let queues = stats["queues"].as_array();
        let front_end = match stats["connected"].as_bool() {
            _ if export["shutting-down"] == true => "ending",
            _ if export["io-status"] == "nospace" => "waits: disk full",
            _ if export["io-status"] == "failed" => "waits: disk error",
            Some(true) => "connected",
            Some(false) => "none",
            None => "",
        };
        let names = queues
            .into_iter()
            .flatten()
            .filter_map(|queue| queue["iothread"].as_str());
        let names: BTreeSet<&str> = names.collect();
        table.row([
            text(&export["id"]),
            text(&export["node-name"]),
            figure(size, format_bytes),
            queues
                .map(|queues| queues.len().to_string())
                .unwrap_or_default(),
            front_end.to_owned(),
            Vec::from_iter(names).join(","),
            text(&export["socket"]),
        ]);
    }
    table.to_string()
}

pub(super) fn nodes(replies: &Replies) -> String {
    let columns = [
        ("NODE", Left),
        ("DRIVER", Left),
        ("SIZE", Right),
        ("USED", Right),
        ("DIRECT", Left),
        ("WRITABLE", Left),
        ("FILE", Left),
    ];
    let mut table = Table::new(&columns, "No nodes: there is nothing to export");
    for node in oldest_first(&replies.nodes) {
        let writable = node["ro"].as_bool().map(|read_only| !read_only);
        table.row([
            text(&node["node-name"]),
            text(&node["drv"]),
            figure(&node["image"]["virtual-size"], format_bytes),
            figure(&node["image"]["actual-size"], format_bytes),
            yes_no(&node["cache"]["direct"]),
            yes_no(&writable.into()),
            text(&node["file"]),
        ]);
    }
    table.to_string()
}

pub(super) fn iothreads(replies: &Replies) -> String {
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
    let mut table = Table::new(&columns, "No iothreads: exports share a default one");
    for iothread in replies.iothreads.as_array().into_iter().flatten() {
        let stats = &iothread["stats"];
        let cpus = iothread["cpu-affinity"]
            .as_array()
            .map(|cpus| match cpus.len() {
                0 => "any".to_owned(),
                _ => cpus.iter().map(text).collect::<Vec<_>>().join(","),
            });
        let batch = ratio(&stats["requests-submitted"], &stats["submit-calls"]);
        let hits = ratio(&stats["poll-hits"], &stats["polls"]);
        let limit = |value: u64| {
            if value == 0 {
                "default".to_owned()
            } else {
                value.to_string()
            }
        };
        table.row([
            text(&iothread["id"]),
            text(&iothread["thread-id"]),
            figure(&iothread["poll-max-ns"], format_ns),
            figure(&iothread["poll-cpu-max"], |percent| format!("{percent} %")),
            figure(&iothread["aio-max-batch"], limit),
            cpus.unwrap_or_default(),
            figure(&stats["cpu-time-ns"], format_ns),
            batch.map(|batch| format!("{batch:.1}")).unwrap_or_default(),
            hits.map(|hits| format!("{:.0} %", 100.0 * hits))
                .unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// A quotient; `None` without a divisor.
fn ratio(part: &Value, of: &Value) -> Option<f64> {
    let of = of.as_f64().filter(|of| *of > 0.0)?;
    Some(part.as_f64()? / of)
}

pub(super) fn stats(replies: &Replies) -> String {
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
    let mut table = Table::new(&columns, "No exports: there are no counters");
    for export in replies.stats.as_array().into_iter().flatten() {
        let stats = &export["stats"];
        let mut name = text(&export["export"]);
        for (kind, shown) in [
            ("rd", "read"),
            ("wr", "write"),
            ("flush", "flush"),
            ("unmap", "discard"),
        ] {
            let of = |key: String| &stats[key];
            let operations = of(format!("{kind}_operations"));
            let mean = ratio(of(format!("{kind}_total_time_ns")), operations);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "rounded, for people"
            )]
            let mean = mean.map(|ns| format_ns(ns.round() as u64));
            table.row([
                std::mem::replace(&mut name, " ".to_owned()),
                shown.to_owned(),
                figure(operations, format_count),
                figure(of(format!("{kind}_bytes")), format_bytes),
                mean.unwrap_or_default(),
                figure(of(format!("{kind}_merged")), format_count),
                figure(of(format!("failed_{kind}_operations")), format_count),
                figure(of(format!("invalid_{kind}_operations")), format_count),
            ]);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn replies() -> Replies {
        Replies {
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
        assert_eq!(exports(&replies()), expected);
        let expected = "\
NODE  DRIVER     SIZE   USED  DIRECT  WRITABLE  FILE
d0    file     10 GiB  1 MiB  yes     yes       d0.img
d1    null-co   1 GiB      -  no      no        null-co://
";
        assert_eq!(nodes(&replies()), expected);
        let expected = "\
IOTHREAD  TID  POLL-MAX  POLL-CPU-MAX  AIO-MAX-BATCH  CPUS  CPU TIME  MEAN BATCH  POLL HITS
io0         7    200 us          90 %        default  0,2      1.5 s        16.0       75 %
";
        assert_eq!(iothreads(&replies()), expected);
        let expected = "\
EXPORT           OPERATIONS      DATA  MEAN TIME  MERGED  FAILED  INVALID
e0      read          1,200  4.69 MiB      20 us       3       1        0
        write             -         -          -       -       -        -
        flush             0         -          -       -       -        -
        discard           -         -          -       -       -        -
";
        assert_eq!(stats(&replies()), expected);
    }

    #[test]
    fn export_with_parked_requests_shows_the_reason() {
        for (status, shown) in [
            ("ok", "connected"),
            ("nospace", "waits: disk full"),
            ("failed", "waits: disk error"),
        ] {
            let mut replies = replies();
            replies.exports[1]["io-status"] = status.into();
            let table = exports(&replies);
            assert!(table.lines().nth(1).unwrap().contains(shown), "{table}");
        }
    }

    #[test]
    fn values_that_the_monitor_does_not_report_are_dashes() {
        let replies = Replies {
            exports: json!([{"id": "e", "node-name": "gone"}]),
            ..Replies::default()
        };
        let table = exports(&replies);
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["e", "gone", "-", "-", "-", "-", "-"]);
        assert_eq!(
            replies.table(super::super::Part::Nodes),
            "This monitor does not report nodes\n"
        );
    }
}
