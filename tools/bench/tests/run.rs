//! `blockplane-bench run` and `blockplane-bench compare` on real servers, for tiny times: that figures are there and
//! sane, that wrong data is found, that every failure is an error and none hangs. No time is
//! asserted.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

mod device;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench::cli::{Cli, run};
use bench::program::blockplane;
use clap::Parser;
use device::{Device, Flaw};
use serde_json::Value;
use tempfile::TempDir;

/// What a command line says as JSON, or its error.
fn report_of(words: &[&str]) -> Result<Value, String> {
    let words = ["bench"].iter().chain(words).chain(&["--json"]);
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    run(&cli, &mut out).map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&out).unwrap())
}

/// blockplane, serving one disk; killed at the end.
struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    fn serve(words: &[&str]) -> Daemon {
        Daemon::start(&[&["serve"], words, &["--quiet", "--socket", "socket"]].concat())
    }

    fn start(words: &[&str]) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new(blockplane(None).unwrap())
            .args(words)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Daemon { child, folder };
        let since = Instant::now();
        // The file exists before a process listens on it.
        while UnixStream::connect(daemon.socket()).is_err() {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "it does not listen"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn run(&self, line: &str) -> Result<Value, String> {
        run_on(&self.socket(), line)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Has ended already where that is what the test is about.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run_on(socket: &Path, line: &str) -> Result<Value, String> {
    let mut words = vec!["run", socket.to_str().unwrap()];
    words.extend(line.split_whitespace());
    report_of(&words).map(|mut report| report["run"].take())
}

const SHORT: &str = "--time 200ms --warm-up 10ms --repetitions 2";

#[test]
fn run_reports_every_figure_with_sane_values() {
    let daemon = Daemon::serve(&["null-co:"]);
    for client in ["polling", "blocking"] {
        for depth in [1, 32, 512] {
            let run = daemon
                .run(&format!(
                    "--client {client} --depth {depth} --queues 2 {SHORT}"
                ))
                .unwrap();
            let median = |key: &str| run[key]["median"].as_f64().unwrap();
            assert!(median("iops") > 0.0, "{run}");
            let mb = median("iops") * 4096.0 / 1e6;
            assert!((median("mb_per_s") - mb).abs() < mb / 1e6, "{run}");
            let latencies = [
                "latency_p50_us",
                "latency_p99_us",
                "latency_p99_9_us",
                "latency_max_us",
            ]
            .map(|key| run[key]["max"].as_f64().unwrap());
            assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{latencies:?}");
            assert!(median("server_cpu_ns_per_io") > 0.0, "{run}");
            // One iothread cannot use more than one processor.
            assert!(median("server_busiest_percent") < 110.0, "{run}");
            assert!(
                (0.0..=100.0).contains(&median("client_idle_percent")),
                "{run}"
            );
            assert_eq!(run["repetitions"], 2);
            assert_eq!(run["saturated"].as_array().unwrap().len(), 2);
            let load = &run["load"];
            assert_eq!(load["depth"], depth);
            assert_eq!(
                (&load["client"], &load["queues"]),
                (&client.into(), &2.into())
            );
        }
    }
}

#[test]
fn run_counts_all_requests_and_their_progress() {
    let daemon = Daemon::serve(&["null-co:"]);
    let line = format!("--queues 2 --client-threads 2 --status-interval 20ms --recorded {SHORT}");
    let run = daemon.run(&line).unwrap();
    for one in run["each"].as_array().unwrap() {
        let sum = |key: &str| -> u64 {
            let threads = one["threads"].as_array().unwrap().iter();
            threads.map(|thread| thread[key].as_u64().unwrap()).sum()
        };
        assert_eq!(one["requests"], sum("requests"));
        assert_eq!(one["requests_in_all"], sum("requests_in_all"));
        // The warm-up had some.
        assert!(sum("requests") < sum("requests_in_all"), "{one}");
        for thread in one["threads"].as_array().unwrap() {
            let course = thread["course"].as_array().unwrap();
            let of = |index: usize| course.iter().map(move |mark| mark[index].as_u64().unwrap());
            assert!(
                of(0).is_sorted_by(|a, b| a < b) && of(1).is_sorted(),
                "{thread}"
            );
            assert_eq!(of(1).next(), Some(0));
            let at_last = of(1).next_back().unwrap();
            assert!(at_last > 0 && at_last <= thread["requests_in_all"].as_u64().unwrap());
            assert!(of(0).any(|ns| ns > thread["since_ns"].as_u64().unwrap()));
        }
    }
    let silent = daemon.run(SHORT).unwrap();
    assert_eq!(
        silent["each"][0]["threads"][0]["course"],
        serde_json::json!([])
    );
}

#[test]
fn latencies_can_be_turned_off() {
    let daemon = Daemon::serve(&["null-co:"]);
    let run = daemon.run(&format!("--no-latency {SHORT}")).unwrap();
    assert!(run["latency_p50_us"].is_null());
    assert!(run["iops"]["median"].as_f64().unwrap() > 0.0);
}

/// As a disk that stalls does: what is measured has something in it all the same.
#[test]
fn disk_slower_than_the_measured_time_has_figures() {
    let daemon = Daemon::start(&[
        "--blockdev=null-co,node-name=slow,size=1G,latency-ns=700000000",
        "--export=vhost-user-blk,id=slow,node-name=slow,addr.type=unix,addr.path=socket",
    ]);
    for client in ["polling", "blocking"] {
        let run = daemon
            .run(&format!("--client {client} --depth 2 {SHORT}"))
            .unwrap();
        assert!(run["iops"]["min"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["server_cpu_ns_per_io"]["min"].is_f64(), "{run}");
    }
}

#[test]
fn all_patterns_and_sizes_verify() {
    let daemon = Daemon::serve(&["disk.img", "--size", "64M"]);
    for line in [
        "--pattern randrw:60 --queues 4 --depth 16 --client-threads 2",
        "--pattern randwrite --bs 512 --depth 64",
        "--pattern write --bs 1M --depth 4",
        "--pattern rw --bs 12k --client blocking --queues 2",
        "--pattern randrw --depth 512 --span 8M",
    ] {
        let run = daemon
            .run(&format!("--verify --destroy-data --time 100ms {line}"))
            .unwrap();
        let count = |key: &str| run["verified"][key].as_u64().unwrap();
        assert!(count("writes") > 0, "{line}: {run}");
        let read_back = count("read_back");
        assert!(
            0 < read_back && read_back <= count("writes"),
            "{line}: {run}"
        );
    }
}

#[test]
fn disk_is_written_only_with_destroy_data() {
    let daemon = Daemon::serve(&["disk.img", "--size", "1M"]);
    let error = daemon.run("--pattern randwrite").unwrap_err();
    assert!(error.contains("--destroy-data"), "{error}");
    let error = daemon.run("--verify --destroy-data").unwrap_err();
    assert!(
        error.contains("--verify needs a pattern that writes"),
        "{error}"
    );
    let bytes = std::fs::read(daemon.folder.path().join("disk.img")).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn unsuitable_load_is_refused() {
    let read_only = Daemon::serve(&["null-co:", "--read-only", "--num-queues", "2"]);
    for (line, why) in [
        ("--pattern randrw --destroy-data", "read-only"),
        ("--queues 3", "2 queues"),
        ("--span 2G", "bytes, not"),
        ("--rwmixread 70", "not mixed"),
        ("--rwmixread 70 --pattern randrw:20", "20 % are reads"),
        ("--client-threads 2", "--queues 1"),
        ("--client-cpus 1023", "processor 1023 is not among"),
        ("--server-pid 4294967295", "no such process"),
    ] {
        let error = read_only.run(&format!("{line} {SHORT}")).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
    let blocks = Daemon::serve(&["null-co:", "--logical-block-size", "4096"]);
    let error = blocks.run(&format!("--bs 512 {SHORT}")).unwrap_err();
    assert!(error.contains("blocks of 4096"), "{error}");
}

#[test]
fn socket_without_a_listener_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = run_on(&folder.path().join("none"), SHORT).unwrap_err();
    assert!(error.contains("is the server running"), "{error}");
    let error = run_on(folder.path(), SHORT).unwrap_err();
    assert!(error.contains("is not a socket"), "{error}");
    let error = run_on(&folder.path().join("x".repeat(107)), SHORT).unwrap_err();
    assert!(error.contains("the kernel takes 107"), "{error}");
}

#[test]
fn missing_program_is_an_error_with_the_option_to_name_it() {
    for words in [
        "--servers ours --server /nowhere/blockplane",
        "--servers qemu-storage-daemon --peer /nowhere/qsd",
    ] {
        let line = format!("compare --backing null --depth 1 {words}");
        let error = report_of(&line.split(' ').collect::<Vec<_>>()).unwrap_err();
        assert!(error.contains("there is no program /nowhere/"), "{error}");
    }
}

#[test]
fn impossible_measurement_is_refused_before_a_disk_is_created() {
    let folder = tempfile::tempdir().unwrap();
    for (line, why) in [
        ("compare --backing null --servers raw", "nothing to measure"),
        (
            "compare --backing file,null --servers raw",
            "nothing to measure",
        ),
        ("compare --client-cpus 1023", "processor 1023 is not among"),
        (
            "compare --server-cpus 0,1023",
            "processor 1023 is not among",
        ),
        ("compare --disks 2", "for null and for images"),
        (
            "compare --backing null --disks 2 --iothreads 3",
            "--disks 2",
        ),
        ("targets --client-cpus 1023", "processor 1023 is not among"),
    ] {
        let mut words: Vec<&str> = line.split(' ').collect();
        words.extend(["--folder", folder.path().to_str().unwrap()]);
        words.extend(["--size", "8388607T"]);
        let error = report_of(&words).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
}

#[test]
fn server_that_dies_under_load_is_an_error() {
    for client in ["polling", "blocking"] {
        let mut daemon = Daemon::serve(&["null-co:"]);
        let socket = daemon.socket();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            daemon.child.kill().unwrap();
            daemon
        });
        let error = run_on(&socket, &format!("--time 60s --client {client}")).unwrap_err();
        assert!(error.contains("closed the connection"), "{error}");
        killer.join().unwrap();
    }
}

#[test]
fn server_with_few_features_is_supported() {
    let device = Device::start(Flaw::None);
    for client in ["polling", "blocking"] {
        let run = run_on(
            device.socket(),
            &format!("--client {client} --depth 8 {SHORT}"),
        )
        .unwrap();
        assert!(run["iops"]["median"].as_f64().unwrap() > 0.0, "{run}");
    }
    let verify = "--verify --pattern randrw --destroy-data --time 50ms --depth 4";
    let run = run_on(device.socket(), verify).unwrap();
    assert!(run["verified"]["read_back"].as_u64().unwrap() > 0, "{run}");
    let error = run_on(device.socket(), &format!("--depth 512 {SHORT}")).unwrap_err();
    assert!(error.contains("no indirect descriptors"), "{error}");
}

#[test]
fn verification_finds_corruption() {
    for (flaw, what) in [
        (Flaw::FlippedBit, "1 of 64 words"),
        (Flaw::LostWrite, "the disk lost or changed data"),
        (Flaw::MixedUp, "claims to be sector"),
    ] {
        let device = Device::start(flaw);
        let verify = "--verify --pattern randrw --destroy-data --time 50ms --depth 4";
        // On a busy machine 50 ms may be over before the first flaw.
        let error = (0..100).find_map(|_| run_on(device.socket(), verify).err());
        let error = error.unwrap();
        assert!(error.contains(what), "{flaw:?}: {error}");
        assert!(error.contains("expected"), "{flaw:?}: {error}");
    }
    let failing = Device::start(Flaw::Error);
    let error = run_on(failing.socket(), SHORT).unwrap_err();
    assert!(error.contains("VIRTIO_BLK_S_IOERR"), "{error}");
}

#[test]
fn compare_has_every_contender_at_every_load() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut words = vec!["compare", "--folder", folder.path().to_str().unwrap()];
    let line = "--backing null,file --size 1M --depth 1,8 --client polling,blocking --time 200ms \
                --warm-up 10ms --repetitions 2 --no-pinning --pattern randrw:70 \
                --servers raw,ours,raw:io_uring,raw:threads";
    words.extend(line.split_whitespace());
    let plots = tempfile::tempdir().unwrap();
    let svg = plots.path().join("plot.svg");
    words.extend(["--svg", svg.to_str().unwrap()]);
    let report = report_of(&words).unwrap();
    let parts = report["compare"].as_array().unwrap();
    assert_eq!(parts.len(), 2);
    for (part, names) in parts.iter().zip([
        vec!["ours"],
        vec!["raw:native", "ours", "raw:io_uring", "raw:threads"],
    ]) {
        let rows = part["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2 * 2, "clients x depths");
        for row in rows {
            let servers = row["servers"].as_object().unwrap();
            assert!(servers.keys().eq(&names), "{row}");
            for (name, figures) in servers {
                assert!(figures["iops"]["median"].as_f64().unwrap() > 0.0, "{row}");
                assert!(
                    figures["cpu_ns_per_io"]["median"].as_f64().unwrap() > 0.0,
                    "{name}: {row}"
                );
                let ratio = &figures["ratio_iops"]["median"];
                assert_eq!(ratio.is_null(), name == names[0], "{row}");
            }
        }
    }
    assert_eq!(
        folder.path().read_dir().unwrap().count(),
        0,
        "files are gone"
    );

    let plot = std::fs::read_to_string(svg).unwrap();
    let document = roxmltree::Document::parse(&plot).unwrap();
    let bars: Vec<_> = document
        .descendants()
        .filter(|node| node.has_tag_name("rect"))
        .skip(1 + 4)
        .collect();
    assert_eq!(
        bars.len(),
        2 * 4 * (1 + 4),
        "IOPS and CPU, loads, contenders of null and of file, behind the page and the legend"
    );
    let texts = document.descendants().filter_map(|n| n.text());
    let texts: Vec<_> = texts.map(str::trim).collect();
    for wanted in ["null: kIOPS", "file: CPU us per I/O", "8, blocking"] {
        assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
    }
    let colour = bars[0].attribute("fill").unwrap();
    let ours = bars
        .iter()
        .filter(|bar| bar.attribute("fill") == Some(colour));
    assert_eq!(ours.count(), 2 * 2 * 4, "ours is the same in all panels");
}

#[test]
fn unwritable_plot_is_reported_before_anything_is_measured() {
    let words = ["compare", "--backing", "null", "--svg", "/nowhere/plot.svg"];
    let longer_than_a_test = ["--time", "1000s"];
    let error = report_of(&[&words[..], &longer_than_a_test].concat()).unwrap_err();
    assert!(error.contains("/nowhere/plot.svg"), "{error}");
}

#[test]
fn compare_takes_a_running_server() {
    let daemon = Daemon::serve(&["null-co:"]);
    let socket = daemon.socket();
    let mut words = vec!["compare", "--socket", socket.to_str().unwrap()];
    let line = "--backing null --servers ours,ours-recorded --depth 4 --time 200ms --warm-up 0 --repetitions 1 --no-pinning";
    words.extend(line.split_whitespace());
    let report = report_of(&words).unwrap();
    let servers = &report["compare"][0]["rows"][0]["servers"];
    for name in ["ours-recorded", socket.to_str().unwrap()] {
        let ratio = &servers[name]["ratio_iops"]["median"];
        assert!(ratio.as_f64().unwrap() > 0.0, "{name}: {servers}");
    }

    words.extend(["--pattern", "randwrite"]);
    let error = report_of(&words).unwrap_err();
    assert!(error.contains("--destroy-data"), "{error}");
}

/// With a peer that is our own program, so that every row can be measured anywhere.
#[test]
fn targets_reports_every_target() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let ours = blockplane(None).unwrap();
    let mut words = vec!["targets", "--folder", folder.path().to_str().unwrap()];
    words.extend([
        "--peer",
        ours.to_str().unwrap(),
        "--size",
        "1M",
        "--time",
        "100ms",
    ]);
    words.extend([
        "--warm-up",
        "10ms",
        "--repetitions",
        "1",
        "--idle-disks",
        "3",
    ]);
    words.extend([
        "--idle-queues",
        "2",
        "--server-cpus",
        "0",
        "--client-cpus",
        "0",
    ]);
    let report = report_of(&words).unwrap();
    let targets = report["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 18);
    for target in targets {
        assert!(
            target["ratio"]["median"].as_f64().unwrap() > 0.0,
            "{target}"
        );
        assert!(target["met"].is_boolean(), "{target}");
    }
    let against = |target: &&Value| target["against"] == "raw:native";
    assert_eq!(targets.iter().filter(against).count(), 8);
    let idle = report["idle"].as_array().unwrap();
    assert_eq!(idle.len(), 2);
    assert!(idle.iter().all(|idle| idle["queues"] == 6));
}
