//! NBD servers with the same disk, under a load of fio's with its engine `nbd`, which is a client of libnbd.
//!
//! nbdkit has its plugin file, which uses the page cache, or null, which fills buffers with zeroes where null-co does nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use bench::aio::Aio;
use bench::cpus::Pinned;
use bench::program::find_program;
use bench::progress::Progress;
use bench::server::{Disk, Server, blockdev};
use bench::stats::{Summary, in_turn, number};
use bench::storage::{Backing, BackingOption};
use bench::table::Table;
use bench::{Error, Result};
use serde_json::Value;

use crate::setup::{Program, Setup};

/// What fio does, and its requests in flight.
const LOADS: [(&str, u16); 6] = [
    ("randread", 1),
    ("randread", 16),
    ("randread", 128),
    ("randwrite", 1),
    ("randwrite", 16),
    ("randwrite", 128),
];

/// What one server did.
struct Run {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of all of the server's threads, per request.
    cpu_us: f64,
}

pub(crate) fn run(setup: &Setup) -> Result<Vec<Table>> {
    let fio = find_program("fio").ok_or_else(|| {
        Error::Unsuitable("fio is not in PATH: install it, with its engine nbd".to_owned())
    })?;
    let mut programs = setup.programs()?;
    let others = ["qemu-nbd", "nbdkit"];
    programs.extend(others.into_iter().filter_map(|name| {
        let path = find_program(name)?;
        Some(Program { name, path })
    }));
    let backings = setup.backings(&[BackingOption::Null, BackingOption::Tmpfs]);
    if let Some(foreign) = backings.iter().find(|backing| backing.is_foreign()) {
        return Err(Error::Unsuitable(format!(
            "--backing {foreign}: the disk is written to; null, file or tmpfs is expected"
        )));
    }
    let columns = [
        "load",
        "server",
        "IOPS",
        "p50 us",
        "p99 us",
        "CPU us/IO",
        "IOPS of ours",
    ];
    let mut table = Table::new("NBD servers under fio, 4k", &columns.map(str::to_owned));
    let steps = backings.len() * LOADS.len() * programs.len() * setup.repetitions as usize;
    let progress = Progress::start("nbd", steps);
    for wanted in backings {
        let storage = wanted.storage(setup.place.room(), Some(Aio::Native))?;
        let disk = Disk::virtio(&storage.backing, 1, true);
        for (rw, depth) in LOADS {
            let case = format!("{wanted}: {rw}, depth {depth}");
            let runs = in_turn(programs.len(), setup.repetitions, |index| {
                let program = &programs[index];
                progress.now(format!("{case}: {}", program.name));
                let run = measure(program, &disk, &fio, (rw, depth), setup);
                progress.step();
                run.map_err(|error| error.of(program.name))
            })?;
            for (index, (program, runs_of)) in programs.iter().zip(&runs).enumerate() {
                let median = |figure: fn(&Run) -> f64| {
                    let summary = Summary::of_runs(runs_of, |run| Some(figure(run)));
                    summary.map_or_else(String::new, |summary| number(summary.median))
                };
                let iops = |run: &Run| Some(run.iops);
                let ratio = Summary::of_ratios(&runs[0], runs_of, iops).filter(|_| index > 0);
                table.row([
                    case.clone(),
                    program.name.to_owned(),
                    median(|run| run.iops),
                    median(|run| run.p50_us),
                    median(|run| run.p99_us),
                    median(|run| run.cpu_us),
                    ratio.map_or_else(String::new, |ratio| ratio.ratio_text()),
                ]);
            }
        }
    }
    table.note(
        "IOPS of ours: over those of the row's server, by repetition: median (lowest-highest)",
    );
    Ok(vec![table])
}

/// Each measurement has a server of its own, so that a server that polls takes nothing from others.
fn measure(
    program: &Program,
    disk: &Disk,
    fio: &Path,
    (rw, depth): (&str, u16),
    setup: &Setup,
) -> Result<Run> {
    let cpus = &setup.place.server_cpus;
    let mut server = Server::start_listening_at(&program.path, cpus, |socket| {
        arguments(program.name, disk, &socket.display().to_string())
    })?;
    // It listens then.
    drop(server.connect(0)?);
    let before = cpu_ns(server.pid())?;
    let pinned = Pinned::to(&setup.place.client_cpus)?;
    let socket = server.first_socket();
    let output = Command::new(fio)
        .args([
            "--name=load",
            "--ioengine=nbd",
            "--output-format=json",
            "--bs=4096",
        ])
        .args(["--group_reporting", "--time_based", "--thread"])
        .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
        .args([format!("--rw={rw}"), format!("--iodepth={depth}")])
        .arg(format!("--runtime={}ms", setup.time.as_millis()))
        .output()
        .map_err(Error::io("start fio"))?;
    drop(pinned);
    let used_ns = cpu_ns(server.pid())? - before;
    let Some(run) = figures(&output.stdout, used_ns).filter(|_| output.status.success()) else {
        let text = String::from_utf8_lossy(&output.stderr);
        let error = format!("fio failed ({}): {}", output.status, text.trim());
        return Err(server.explain(Error::Requests(error)));
    };
    server.stop()?;
    Ok(run)
}

/// The command line that makes a program serve the disk. The name of the export is empty: what clients get that name none.
fn arguments(program: &str, disk: &Disk, socket: &str) -> Vec<String> {
    let node = blockdev(0, disk);
    let words: Vec<&str> = match (program, &disk.backing) {
        ("nbdkit", Backing::File(path, _)) => {
            let path = path.to_str().unwrap_or_default();
            vec!["--foreground", "--unix", socket, "file", path]
        }
        ("nbdkit", _) => vec!["--foreground", "--unix", socket, "null", "1G"],
        ("qemu-nbd", _) => vec!["-t", "-e", "64", "-k", socket, "--image-opts", &node],
        (name, _) => {
            let address = format!("addr.type=unix,addr.path={socket}");
            let export = "nbd,id=e0,node-name=d0,name=,writable=on";
            // The peer of version 7.2 aborts when a client of an export on an iothread goes.
            let (object, iothread) = match name {
                "ours" => (vec!["--object", "iothread,id=io0"], ",iothread=io0"),
                _ => (vec![], ""),
            };
            let words = [object, vec!["--blockdev", &node, "--nbd-server", &address]].concat();
            let words = words.into_iter().map(str::to_owned);
            return words
                .chain(["--export".to_owned(), format!("{export}{iothread}")])
                .collect();
        }
    };
    words.into_iter().map(str::to_owned).collect()
}

/// Reads fio's report: both directions together, and the latencies of the one that it was asked for.
fn figures(output: &[u8], used_ns: u64) -> Option<Run> {
    // Warnings may come first.
    let start = output.iter().position(|&byte| byte == b'{')?;
    let report: Value = serde_json::from_slice(&output[start..]).ok()?;
    let job = report.get("jobs")?.get(0)?;
    let requests = |direction: &Value| direction["total_ios"].as_f64();
    let directions = [job.get("read")?, job.get("write")?].into_iter();
    let direction = directions.max_by(|a, b| {
        requests(a)
            .partial_cmp(&requests(b))
            .unwrap_or(std::cmp::Ordering::Equal)
    })?;
    let us = |percent: &str| Some(direction["clat_ns"]["percentile"][percent].as_f64()? / 1e3);
    Some(Run {
        iops: direction["iops"].as_f64()?,
        p50_us: us("50.000000")?,
        p99_us: us("99.000000")?,
        cpu_us: used_ns as f64 / 1e3 / requests(direction)?,
    })
}

/// Processor time of a process and of all threads that it has had, of the kernel's ticks (10 ms as a rule).
fn cpu_ns(pid: u32) -> Result<u64> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let stat = std::fs::read_to_string(&path);
    let stat = stat.map_err(Error::io(format!("read {}", path.display())))?;
    // proc(5). The name, in parentheses, may contain anything. After it come fields 3 and following: 14 is utime, 15 is stime.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let times = fields.split_whitespace().skip(14 - 3).take(2);
    let ticks: u64 = times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Ok(ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
}
