//! Small measurements run and report what they should. No time is asserted, because a test machine may be
//! slow. That an idle server sleeps is asserted.
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

#[test]
fn handlers_reports_every_operation_at_every_number() {
    let report =
        json_of("handlers --only loop --registered 3,200 --loop-repetitions 3 --operations 300");
    let figures = report["handlers"].as_array().unwrap();
    let loops = 2 * 2 * 6;
    let slab_alone = 2 * 2;
    assert_eq!(
        figures.len(),
        loops + slab_alone,
        "pollers x numbers x operations"
    );
    for figure in figures {
        let registered = figure["registered"].as_u64().unwrap();
        let hundred = figure["operation"].as_str().unwrap().contains("100 ready");
        if hundred && registered == 3 {
            assert!(figure["cost_ns"].is_null(), "{figure}");
        } else {
            assert!(
                figure["cost_ns"]["median"].as_f64().unwrap() > 0.0,
                "{figure}"
            );
        }
    }
}

#[test]
fn an_idle_server_sleeps() {
    let report = json_of("idle --disks 2 --queues 2 --settle-ms 300 --watch-ms 300");
    let servers = report["idle"].as_array().unwrap();
    let backings: Vec<_> = servers.iter().map(|server| &server["backing"]).collect();
    assert_eq!(backings, ["null-co", "file"]);
    for server in servers {
        assert_eq!(server["queues"], 4);
        assert!(server["watched_ns"].as_u64().unwrap() >= 300_000_000);
        let threads = server["threads"].as_array().unwrap();
        let is_iothread = |thread: &&Value| thread["name"].as_str().unwrap().starts_with("IO ");
        assert_eq!(
            threads.iter().filter(is_iothread).count(),
            1,
            "{threads:#?}"
        );
        for thread in threads {
            assert_eq!(thread["voluntary_switches"], 0, "woke up: {thread}");
        }
        // Every queue has a kick and a call of its own in the server.
        let connected = server["descriptors_connected"].as_u64().unwrap();
        let started = server["descriptors_started"].as_u64().unwrap();
        assert!(started >= connected + 8, "{connected} -> {started}");
    }
}
