//! A small backup under load. No time is asserted.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use bench::cli::{Cli, run};
use clap::Parser;
use serde_json::Value;

/// What the command prints, as JSON or as tables.
fn output(command_line: &str) -> Result<String, String> {
    let args = std::iter::once("bench").chain(command_line.split_whitespace());
    let cli = Cli::try_parse_from(args).unwrap();
    let mut out = Vec::new();
    run(&cli, &mut out).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

fn median(figure: &Value) -> f64 {
    let median = figure["median"].as_f64();
    median.unwrap_or_else(|| panic!("{figure} has no median"))
}

#[test]
fn guest_is_measured_without_a_job_and_with_jobs() {
    let report = output(
        "backup --servers ours,qemu-storage-daemon --backing tmpfs,file --size 4M --depth 4 \
         --time 50ms --warm-up 10ms --repetitions 1 --json",
    );
    let report: Value = serde_json::from_str(&report.unwrap()).unwrap();
    let rows = report["backup"].as_array().unwrap();
    let cases: Vec<_> = rows
        .iter()
        .map(|row| (&row["backing"], &row["load"]["pattern"]))
        .collect();
    let expected =
        ["tmpfs", "file"].map(|place| ["randread", "randwrite"].map(|load| (place, load)));
    assert_eq!(cases.len(), 4, "{cases:?}");
    for (case, (place, load)) in cases.iter().zip(expected.into_iter().flatten()) {
        assert_eq!((case.0, case.1), (&place.into(), &load.into()));
    }
    for row in rows {
        let figures = row["figures"].as_array().unwrap();
        let servers: Vec<_> = figures.iter().map(|one| &one["server"]).collect();
        assert_eq!(servers, ["ours", "qemu-storage-daemon"]);
        for one in figures {
            for key in ["iops", "p50_us", "p99_us"] {
                let [without, with, ratio] =
                    ["without", "with", "ratio"].map(|part| median(&one[key][part]));
                assert!(without > 0.0 && with > 0.0, "{one}");
                assert!((ratio - with / without).abs() < 1e-9 * ratio, "{one}");
            }
            assert!(one["jobs_under_load"].as_u64().unwrap() >= 1, "{one}");
            assert!(median(&one["job_alone_seconds"]) > 0.0, "{one}");
            assert!(median(&one["job_under_load_seconds"]) > 0.0, "{one}");
        }
        for key in ["iops_with", "p99_us_with", "job_alone", "job_under_load"] {
            assert_eq!(median(&figures[0]["first_over_this"][key]), 1.0, "{row}");
            assert!(median(&figures[1]["first_over_this"][key]) > 0.0, "{row}");
        }
    }
}

#[test]
fn only_server_has_a_table_without_comparison() {
    let tables = output(
        "backup --servers ours --backing tmpfs --size 4M --pattern randrw:70 --depth 1 --time 20ms --warm-up 10ms \
         --repetitions 1",
    );
    let tables = tables.unwrap();
    assert!(tables.contains("job alone, s"), "{tables}");
    assert!(
        tables.contains("tmpfs: randrw:70 4k, 1 queue, depth 1"),
        "{tables}"
    );
    assert!(!tables.contains("ours over the others"), "{tables}");
}

#[test]
fn disk_without_data_or_with_foreign_data_is_refused() {
    for place in ["null", "/dev/null"] {
        let refused = output(&format!("backup --servers ours --backing {place}"));
        let error = refused.unwrap_err();
        assert!(error.contains("file or tmpfs is expected"), "{error}");
    }
}
