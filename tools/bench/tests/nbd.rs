//! NBD servers under a load of fio's, for a moment.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use bench::cli::{Cli, run};
use clap::Parser;
use serde_json::Value;

#[test]
fn every_server_is_measured_with_each_load() {
    let line = "bench nbd --backing null,tmpfs --size 4M --rw randread,randwrite --depth 4 --time 100ms \
                --repetitions 1 --json";
    let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
    let mut out = Vec::new();
    run(&cli, &mut out).unwrap();
    let report: Value = serde_json::from_slice(&out).unwrap();
    let rows = report["nbd"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "kinds of disks x loads");
    for row in rows {
        let figures = row["figures"].as_array().unwrap();
        let servers: Vec<_> = figures.iter().map(|one| &one["server"]).collect();
        assert_eq!(
            servers,
            ["ours", "qemu-storage-daemon", "qemu-nbd", "nbdkit"]
        );
        for one in figures {
            for key in ["iops", "p99_us", "iops_ratio_of_first"] {
                assert!(one[key]["median"].as_f64().unwrap() > 0.0, "{row}");
            }
            // Counted in ticks: 0 after few requests.
            assert!(
                one["cpu_us_per_io"]["median"].as_f64().unwrap() >= 0.0,
                "{row}"
            );
        }
    }
}
