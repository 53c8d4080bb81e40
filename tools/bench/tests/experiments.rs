//! Every experiment has all its rows, as JSON and as a plot, and the program that was built with a patch serves those
//! that are named for it. What that does to a figure is not asserted.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bench::cli::{Cli, run};
use bench::program::blockplane;
use clap::Parser;
use serde_json::Value;

const SHORT: &str = "--repetitions 2 --run-ms 100 --warm-up-ms 5 --file-mib 16";

/// All of them bind servers and clients to the same two processors: side by side, one could find none of
/// its time left to be served in.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The command's JSON, its table and how many bars are in its plot.
struct Outcome {
    json: Value,
    bars: usize,
}

fn measure(command_line: &str) -> Outcome {
    // Another test's failure is its own.
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("plot.svg");
    let line = format!("{command_line} {SHORT} --json --svg {}", svg.display());
    let args = std::iter::once("bench").chain(line.split(' '));
    let mut out = Vec::new();
    run(&Cli::try_parse_from(args).unwrap(), &mut out).unwrap();
    let plot = std::fs::read_to_string(svg).unwrap();
    let document = roxmltree::Document::parse(&plot).unwrap();
    // Rectangles but the page's ground and the legend's squares, each of which has its name to the right.
    let rectangles = document
        .descendants()
        .filter(|node| node.has_tag_name("rect"));
    let names = document
        .descendants()
        .filter(|node| node.attribute("text-anchor") == Some("start"));
    Outcome {
        json: serde_json::from_slice(&out).unwrap(),
        bars: rectangles.count() - 1 - names.count(),
    }
}

/// A program in place of one that was built with a patch: blockplane as it is, which leaves a file with its arguments when it
/// starts.
struct Patched {
    folder: tempfile::TempDir,
}

impl Patched {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let patched = Patched { folder };
        let program = blockplane(None).unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> \"$0.started\"\nexec '{}' \"$@\"\n",
            program.display()
        );
        std::fs::write(patched.program(), script).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(patched.program(), executable).unwrap();
        patched
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("patched")
    }

    /// The option that names it.
    fn option(&self, patch: &str) -> String {
        format!("--patched {patch}={}", self.program().display())
    }

    /// The arguments of each start.
    fn starts(&self) -> Vec<String> {
        let starts = std::fs::read_to_string(self.folder.path().join("patched.started"));
        let starts = starts.unwrap_or_default();
        starts.lines().map(str::to_owned).collect()
    }
}

/// Asserts that a part of a report has `loads` x `variants` figures.
fn complete(part: &Value, loads: usize, variants: &[&str]) {
    let rows = part["loads"].as_array().unwrap();
    assert_eq!(rows.len(), loads, "{part:#}");
    for row in rows {
        let figures = row["figures"].as_array().unwrap();
        let names: Vec<_> = figures.iter().map(|figure| &figure["variant"]).collect();
        assert_eq!(names, variants);
        for figure in figures {
            assert!(figure["iops"]["mean"].as_f64().unwrap() > 0.0, "{row:#}");
            assert!(figure["iops"]["error_percent"].is_f64(), "{row:#}");
            for per_request in ["cpu_ns_per_request", "sleeps_per_request"] {
                assert!(figure[per_request]["mean"].is_f64(), "{row:#}");
            }
        }
    }
}

/// A count of the server of this variant.
fn counted(part: &Value, variant: &str, counter: &str) -> u64 {
    let servers = part["servers"].as_array().unwrap();
    let server = servers.iter().find(|server| server["variant"] == variant);
    let count = server.unwrap()["counters"][counter].as_u64();
    count.unwrap_or_else(|| panic!("{variant} has no {counter}: {part:#}"))
}

#[test]
fn batch_limit_limits_batches() {
    let outcome = measure("batch-limit --limit 8,64 --queues 1,2 --depth 1,64 --block-kib 4,16");
    let part = &outcome.json["batch_limit"];
    complete(part, 2 * 2 * 2, &["limit 8", "limit 64"]);
    assert_eq!(outcome.bars, 2 * 2 * 2 * 2);
    assert_eq!(counted(part, "limit 8", "largest_batch"), 8);
    let larger = counted(part, "limit 64", "largest_batch");
    assert!((9..=64).contains(&larger), "{larger}");
}

#[test]
fn batch_limit_measures_programs_with_other_limits_beside_its_own() {
    let (adaptive, pile_up) = (Patched::new(), Patched::new());
    let outcome = measure(&format!(
        "batch-limit --queues 1 --depth 8 --block-kib 4 --tmpfs {} {}",
        adaptive.option("adaptive-batch"),
        pile_up.option("pile-up"),
    ));
    let numbers = [1024, 8, 16, 32, 64].map(|limit| format!("limit {limit}"));
    let mut names = vec!["pile-up"];
    names.extend(numbers.iter().map(String::as_str));
    names.push("adaptive");
    complete(&outcome.json["batch_limit"], 1, &names);
    for (program, limit) in [
        (adaptive, "aio-max-batch=0 "),
        (pile_up, "aio-max-batch=1024 "),
    ] {
        let starts = program.starts();
        assert!(
            matches!(&starts[..], [one] if one.contains(limit)),
            "{limit}: {starts:?}"
        );
    }
}

#[test]
fn completion_ring_compares_reads_and_writes() {
    let patched = Patched::new();
    let outcome = measure(&format!(
        "completion-ring --queues 2 --depth 1,8 --block-kib 4,8 {}",
        patched.option("completion-syscall")
    ));
    for kind in ["read", "write"] {
        let part = &outcome.json["completion_ring"][kind];
        complete(part, 2 * 2, &["io_getevents", "ring in user space"]);
        assert_eq!(counted(part, "ring in user space", "getevents_calls"), 0);
        assert!(counted(part, "ring in user space", "submitted") > 0);
    }
    assert_eq!(patched.starts().len(), 2);
    assert_eq!(outcome.bars, 2 * 2 * 2 * 2);
}

#[test]
fn notify_measures_both_orders() {
    let patched = Patched::new();
    let outcome = measure(&format!(
        "notify --queues 1,2 --depth 1,16 --client blocking {}",
        patched.option("late-notify")
    ));
    complete(
        &outcome.json["notify"],
        2 * 2,
        &["after the submission", "after the last completion"],
    );
    assert_eq!(patched.starts().len(), 1);
    assert_eq!(outcome.bars, 2 * 2 * 2);
}

#[test]
fn an_experiment_without_its_second_program_says_how_to_get_it() {
    for (line, patch) in [
        ("notify", "late-notify"),
        ("completion-ring", "completion-syscall"),
        ("batch-limit --limit adaptive", "adaptive-batch"),
        ("batch-limit --limit pile-up,8", "pile-up"),
    ] {
        let line = format!("bench {line} --null --repetitions 1 --run-ms 5");
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let error = run(&cli, &mut Vec::new()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("cargo xtask experiment {patch}")),
            "{error}"
        );
        assert!(
            error.contains(&format!("--patched {patch}=PATH")),
            "{error}"
        );
    }
}

#[test]
fn monitors_has_a_row_for_each_rate_and_clients_get_replies() {
    let outcome = measure("monitors --clients 5 --rate 0,500,max --clients-nice 1");
    let rows = outcome.json["monitors"]["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| &row["clients"]).collect();
    let wanted = [
        "no client",
        "silent",
        "500 questions per s",
        "as fast as answered",
    ];
    assert_eq!(names, wanted);
    for (row, (compared, asks)) in
        rows.iter()
            .zip([(false, false), (true, false), (true, true), (true, true)])
    {
        assert!(row["iops"]["mean"].as_f64().unwrap() > 0.0, "{row:#}");
        assert_eq!(row["ratio"]["mean"].is_f64(), compared, "{row:#}");
        let answers = row["answers_per_s"]["min"].as_f64().unwrap_or_default();
        assert_eq!(
            (answers > 0.0, row["answer_p99_us"].is_f64()),
            (asks, asks),
            "{row:#}"
        );
        assert!(row["control_cpu_percent"]["mean"].is_f64(), "{row:#}");
    }
    assert_eq!(outcome.bars, rows.len());
}

/// Every command that came back with a bad status would end it.
#[test]
fn scsi_measures_every_access_path_whole_and_in_pieces() {
    for client in ["polling", "blocking"] {
        let line = format!(
            "scsi --depth 4 --small-depth 8 --block-kib 16 --piece-kib 8 --client {client}"
        );
        let outcome = measure(&line);
        let loads = outcome.json["scsi"]["loads"].as_array().unwrap();
        let kinds: Vec<_> = loads
            .iter()
            .map(|load| (&load["block_bytes"], &load["write"]))
            .collect();
        let wanted = [(16384, true), (16384, false), (4096, false)]
            .map(|(bytes, write)| (Value::from(bytes), Value::from(write)));
        assert_eq!(
            kinds,
            wanted.each_ref().map(|(bytes, write)| (bytes, write))
        );
        for load in loads {
            let small = load["block_bytes"] == 4096;
            let figures = load["figures"].as_array().unwrap();
            let ways: Vec<_> = figures
                .iter()
                .map(|figure| {
                    (
                        figure["way"].as_str().unwrap(),
                        figure["command_bytes"].as_u64().unwrap(),
                    )
                })
                .collect();
            let whole = if small { 4096 } else { 16384 };
            let cut = [("LSI, as of old", 8192), ("LSI, pieces", 8192)];
            let uncut = ["LSI", "virtio-scsi", "virtio-blk", "host"].map(|way| (way, whole));
            let wanted: Vec<_> = cut.into_iter().filter(|_| !small).chain(uncut).collect();
            assert_eq!(ways, wanted);
            for figure in figures {
                assert!(figure["commands"].as_u64().unwrap() > 0, "{figure:#}");
                assert!(
                    figure["mb_per_s"]["mean"].as_f64().unwrap() > 0.0,
                    "{figure:#}"
                );
                assert!(figure["cpu_us_per_request"]["mean"].is_f64(), "{figure:#}");
            }
            let ratios = load["ratios"].as_array().unwrap();
            assert_eq!(ratios.len(), if small { 3 } else { 4 });
        }
        assert_eq!(outcome.bars, 2 * 6);
    }
}

#[test]
fn many_queues_measures_a_busy_queue_beside_idle_and_scanned_ones() {
    let line = "handlers --only server --idle-disks 3 --idle-queues 5";
    let patched = Patched::new();
    let outcome = measure(&format!("{line} {}", patched.option("scan-handlers")));
    assert!(outcome.json["handlers"].is_null(), "only the server");
    let variants = ["alone", "beside 15 idle", "beside 15 idle, scanning"];
    for polling in ["no_polling", "polling"] {
        complete(&outcome.json["many_queues"][polling], 1, &variants);
    }
    assert_eq!(patched.starts().len(), 2);
    assert_eq!(outcome.bars, 2 * 3);
    let outcome = measure(line);
    for polling in ["no_polling", "polling"] {
        complete(&outcome.json["many_queues"][polling], 1, &variants[..2]);
    }
}

#[test]
fn batch_limit_prints_the_published_table_without_a_disk() {
    let line =
        "batch-limit --limit 0,8,32 --depth 4 --block-kib 4 --null --repetitions 1 --run-ms 5";
    let args = std::iter::once("bench").chain(line.split(' '));
    let mut out = Vec::new();
    run(&Cli::try_parse_from(args).unwrap(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for wanted in ["own: 1q", "8: 1q", "8: 4q", "32: 1q", "32: 4q", "4k qd 4"] {
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn unknown_option_of_the_server_is_reported() {
    let args = "bench batch-limit --null --iothread x-nonsense=on --repetitions 1 --run-ms 5";
    let error = run(
        &Cli::try_parse_from(args.split(' ')).unwrap(),
        &mut Vec::new(),
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("unknown option 'x-nonsense'"), "{error}");
}
