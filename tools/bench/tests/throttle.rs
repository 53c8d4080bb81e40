//! Small measurements of throttled and of greedy disks. A slow machine gets less than a limit permits, never more.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use bench::cli::{Cli, run};
use clap::Parser;
use serde_json::Value;

fn json_of(command_line: &str) -> Value {
    let args = std::iter::once("bench").chain(command_line.split(' '));
    let cli = Cli::try_parse_from(args.chain(["--json"])).unwrap();
    let mut out = Vec::new();
    run(&cli, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn no_more_passes_than_the_bucket_of_a_limit_gives() {
    let report = json_of(
        "throttle --only accuracy --servers ours --depth 1,64 --bs 4k --after 200ms,1s \
         --limit iops-total=500 --limit bps-total=4096000,bps-total-max=8192000",
    );
    let rows = report["throttle"]["accuracy"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 2, "limits x depths x times");
    for row in rows {
        let figures = row["figures"].as_array().unwrap();
        assert_eq!((figures.len(), &figures[0]["server"]), (1, &"ours".into()));
        let iops = number(&figures[0]["iops"]);
        assert!(iops > 0.0 || number(&row["seconds"]) < 1.0, "{row}");
        // A request passes while the bucket is not full: one more than it holds.
        let requests = number(&row["theory_iops"]) * number(&row["seconds"]);
        let most_percent = 2.0 / requests * 100.0;
        assert!(
            number(&figures[0]["deviation_percent"]) < most_percent,
            "{row}"
        );
    }
}

#[test]
fn members_of_a_group_get_its_limit_together() {
    let report = json_of("throttle --only shares --servers ours --time 500ms");
    let rows = report["throttle"]["shares"].as_array().unwrap();
    for case in ["all want more", "one wants less"] {
        let rows: Vec<&Value> = rows.iter().filter(|row| row["case"] == case).collect();
        let depths: Vec<_> = rows
            .iter()
            .map(|row| row["depth"].as_u64().unwrap())
            .collect();
        assert_eq!(depths, [1, 8, 32, 128]);
        let sum = |figure: &dyn Fn(&Value) -> f64| rows.iter().map(|row| figure(row)).sum::<f64>();
        assert_eq!(sum(&|row| number(&row["share"])), 10_000.0);
        let iops = sum(&|row| number(&row["figures"][0]["iops"]));
        assert!((1.0..12_000.0).contains(&iops), "{rows:?}");
    }
}

#[test]
fn spacing_has_percentiles_of_gaps_and_processor_time() {
    let report = json_of("throttle --only spacing --servers ours --time 200ms");
    let row = &report["throttle"]["spacing"][0];
    let gaps = ["gap_p50_us", "gap_p99_us", "gap_p99_9_us", "gap_max_us"];
    let gaps = gaps.map(|key| number(&row[key]));
    assert!(gaps.is_sorted() && gaps[3] > 0.0, "{row}");
    assert!(number(&row["cpu_us_per_io"]) > 0.0, "{row}");
    assert!(number(&row["iops"]) < 12_000.0, "{row}");
}

#[test]
fn greedy_disks_run_beside_the_one_that_is_measured() {
    let report = json_of(
        "neighbours --servers ours --backing tmpfs --size 4M --time 50ms --warm-up 10ms --repetitions 1",
    );
    let rows = report["neighbours"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 3, "kinds of greed x places");
    for row in rows {
        let figures = &row["figures"][0];
        for key in [
            "alone_p50_us",
            "beside_p50_us",
            "rate_ratio",
            "greedy_mb_per_s",
        ] {
            assert!(number(&figures[key]["median"]) > 0.0, "{row}");
        }
    }
}

#[test]
fn throttled_contender_is_compared_like_any_other() {
    let report = json_of(
        "compare --servers ours-throttled,ours --backing null --depth 8 --time 50ms --warm-up 10ms --repetitions 1",
    );
    let servers = &report["compare"][0]["rows"][0]["servers"];
    for contender in ["ours-throttled", "ours"] {
        assert!(
            number(&servers[contender]["iops"]["median"]) > 0.0,
            "{report}"
        );
    }
}
