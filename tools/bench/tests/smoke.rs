//! `blockplane-bench run` and `blockplane-bench compare` on real servers, for tiny times. No time is asserted.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use bench::cli::{Cli, run};
use bench::program::blockplane;
use clap::Parser;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use test_support::process::Process;

const SHORT: &str = "--time 100ms --warm-up 10ms --repetitions 2";

/// What a command line prints, or its error.
fn output(line: &str) -> Result<String, String> {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    run(&cli, &mut out).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

fn json(line: &str) -> Result<Value, String> {
    output(&format!("{line} --json")).map(|text| serde_json::from_str(&text).unwrap())
}

/// blockplane, serving one disk; killed at the end.
struct Daemon {
    process: Process,
    folder: TempDir,
}

impl Daemon {
    fn serve(words: &str) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(blockplane(None).unwrap());
        command.args(["serve", "--quiet", "--socket", "socket"]);
        command.args(words.split(' ')).current_dir(folder.path());
        let process = Process::spawn(command);
        let mut daemon = Daemon { process, folder };
        let socket = daemon.socket();
        daemon.process.wait_until_accepting(&socket);
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn run(&self, line: &str) -> Result<Value, String> {
        let report = json(&format!("run {} {line}", self.socket().display()));
        report.map(|mut report| report["run"].take())
    }
}

#[test]
fn run_reports_every_figure_of_a_load() {
    let daemon = Daemon::serve("null-co:");
    for load in [
        "--client polling --depth 1",
        "--client blocking --depth 256 --queues 2",
    ] {
        let run = daemon.run(&format!("{load} {SHORT}")).unwrap();
        let median = |key: &str| run[key]["median"].as_f64().unwrap();
        let mb = median("iops") * 4096.0 / 1e6;
        let difference = (median("mb_per_s") - mb).abs();
        assert!(mb > 0.0 && difference < mb / 1e6, "{run}");
        let latencies = ["latency_p50_us", "latency_p99_us", "latency_max_us"].map(median);
        assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{latencies:?}");
        assert!(median("server_cpu_ns_per_io") > 0.0, "{run}");
        assert_eq!(run["each"].as_array().unwrap().len(), 2, "{run}");
    }
    let table = output(&format!("run {} {SHORT}", daemon.socket().display())).unwrap();
    assert!(
        table.contains("| IOPS") && table.contains("* saturated: "),
        "{table}"
    );
}

#[test]
fn compare_measures_servers_and_the_host_on_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let running = Daemon::serve("null-co:");
    let line = format!(
        "compare --servers ours,ours-recorded,raw,raw:io_uring --socket {} --size 16M --folder {} --depth 1,8 \
         --client blocking,polling --no-pinning {SHORT}",
        running.socket().display(),
        folder.path().display()
    );
    let report = json(&line).unwrap();
    let rows = report["compare"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{report:#}");
    for row in rows {
        let servers = row["servers"].as_object().unwrap();
        assert_eq!(servers.len(), 5, "{row:#}");
        for (name, figures) in servers {
            assert!(
                figures["iops"]["median"].as_f64().unwrap() > 0.0,
                "{name}: {row:#}"
            );
            assert_eq!(figures["ratio_iops"].is_null(), name == "ours", "{row:#}");
        }
    }
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "its own file is removed");

    let line = "compare --servers ours --backing null --disks 3 --iothreads 2 --depth 4";
    let table = output(&format!("{line} --no-pinning {SHORT}")).unwrap();
    assert!(table.contains("Backing: null, 3 disks"), "{table}");
}

#[test]
fn verification_reads_all_back_and_finds_what_another_process_changes() {
    let daemon = Daemon::serve("disk.img --size 64M");
    for line in [
        "--pattern randrw:60 --queues 4 --depth 16 --client-threads 2",
        "--pattern randwrite --bs 512 --depth 64",
        "--pattern rw --bs 12k --client blocking --queues 2 --recorded",
    ] {
        let verify = format!("--verify --destroy-data --time 100ms {line}");
        let run = daemon.run(&verify).unwrap();
        let count = |key: &str| run["verified"][key].as_u64().unwrap();
        let (writes, read_back) = (count("writes"), count("read_back"));
        assert!(0 < read_back && read_back <= writes, "{line}: {run}");
    }
    let path = daemon.folder.path().join("disk.img");
    let disk = fs::File::options().write(true).open(path).unwrap();
    let error = std::thread::scope(|scope| {
        // It ends at the first difference.
        let load = "--verify --destroy-data --pattern randrw --depth 8 --time 60s --span 1M";
        let verified = scope.spawn(|| daemon.run(load));
        while !verified.is_finished() {
            disk.write_all_at(&[0x55; 512], 4096).unwrap();
            sleep(Duration::from_millis(1));
        }
        verified.join().unwrap().unwrap_err()
    });
    assert!(error.contains("lost or changed data: byte 4096"), "{error}");
}

#[test]
fn unsuitable_load_is_refused() {
    let read_only = Daemon::serve("null-co: --read-only --num-queues 2 --logical-block-size 4096");
    for (line, why) in [
        ("--pattern randwrite", "--destroy-data"),
        ("--pattern randrw --destroy-data", "read-only"),
        ("--verify", "needs a pattern that writes"),
        ("--bs 512", "blocks of 4096"),
        ("--queues 3", "2 queues"),
        ("--span 2G", "bytes, not"),
        ("--client-threads 2", "--queues 1"),
        ("--client-cpus 1023", "processor 1023 is not among"),
        ("--server-pid 4294967295", "no such process"),
    ] {
        let error = read_only.run(line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
    let error = output("run /nowhere/socket").unwrap_err();
    assert!(error.contains("is the server running"), "{error}");
}

#[test]
fn impossible_comparison_is_refused_before_a_disk_is_created_or_written() {
    let folder = tempfile::tempdir().unwrap();
    for (line, why) in [
        ("--backing file,null --servers raw", "nothing to measure"),
        ("--client-cpus 1023", "processor 1023 is not among"),
        ("--disks 2 --no-pinning", "for null and for images"),
        ("--backing null --disks 2 --iothreads 3", "--disks 2"),
        ("--backing /dev/null", "neither a file nor a block device"),
        ("--backing /dev/zero --pattern randwrite", "--destroy-data"),
        ("--no-pinning", "does not fit"),
        (
            "--backing null --server /nowhere/x",
            "no program /nowhere/x",
        ),
    ] {
        let place = folder.path().display();
        let line = format!("compare {line} --folder {place} --size 8388607T");
        let error = output(&line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn server_that_dies_under_load_is_an_error() {
    for client in ["polling", "blocking"] {
        let mut daemon = Daemon::serve("disk.img --size 64M");
        let load = format!("--pattern randwrite --destroy-data --time 60s --client {client}");
        let line = format!("run {} {load}", daemon.socket().display());
        let load = std::thread::spawn(move || output(&line));
        let disk = fs::File::open(daemon.folder.path().join("disk.img")).unwrap();
        let is_written = || disk.metadata().unwrap().blocks() > 0;
        daemon.process.wait_until("it is written", is_written);
        daemon.process.signal(Signal::KILL);
        let error = load.join().unwrap().unwrap_err();
        assert!(error.contains("closed the connection"), "{error}");
    }
}

#[test]
fn first_signal_ends_a_comparison_and_removes_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockplane-bench"));
    command.args(["compare", "--servers", "raw", "--no-pinning"]);
    command.args(["--size", "1M", "--time", "1000s", "--folder"]);
    command.arg(folder.path());
    let mut bench = Process::spawn(command);
    let has_file = || fs::read_dir(folder.path()).unwrap().count() > 0;
    bench.wait_until("makes its file", has_file);
    bench.signal(Signal::INT);
    let ended = bench.ended();
    let said = ended.stderr;
    assert!(said.ends_with("blockplane-bench: interrupted\n"), "{said}");
    assert_eq!(ended.code, Some(1));
    assert!(!has_file(), "its file is removed");
}
