//! `blockplane-bench run`: a load on a server that is already running, blockplane or another.

mod load_options;

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cpus;
use crate::error::{Error, Result};
use crate::load::{Load, Measured, Tally, Verified, Waiting, measure, verify};
use crate::progress::Progress;
use crate::stats::{Summary, number};
use crate::table::Table;
use crate::units;
pub use load_options::LoadOptions;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The socket on which a vhost-user-blk server listens
    #[arg(value_name = "SOCKET")]
    pub socket: PathBuf,
    /// Requests in flight on each queue, 1 to 256
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: u16,
    /// How the client learns of completions: it watches the ring, or sleeps until it is called
    #[arg(long, value_name = "HOW", value_enum, default_value = "polling")]
    pub client: Waiting,
    /// Processors that the client's threads run on, in turn
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pub client_cpus: Vec<usize>,
    /// The server's process, whose processor time is shown [default: the one that listens]
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// In JSON: how many requests had completed, this often [default: never]
    #[arg(long, value_name = "TIME", value_parser = units::time, conflicts_with = "verify")]
    pub status_interval: Option<Duration>,
    /// Instead of measuring: write data that knows where it belongs, and look whether it comes back
    #[arg(long)]
    pub verify: bool,
    /// The load
    #[command(flatten)]
    pub load: LoadOptions,
}

/// Measures, or verifies; a table for people, and JSON for scripts.
///
/// # Errors
/// [`Error::Unsuitable`] for a load that the disk is not for; what [`measure`] and [`verify`] say.
pub fn run(options: &Options) -> Result<(Table, Value)> {
    let mut load = options
        .load
        .load(options.depth, options.client, &options.client_cpus, 1)?;
    load.mark_interval = options.status_interval;
    let pattern = load.pattern;
    if pattern.writes() && !options.load.destroy_data {
        return Err(Error::Unsuitable(format!(
            "{pattern} writes to the disk, and what is on it is lost: say --destroy-data if that is meant"
        )));
    }
    if options.verify && !pattern.writes() {
        return Err(Error::Unsuitable(format!(
            "--verify needs a pattern that writes, such as randrw; {pattern} does not"
        )));
    }
    cpus::check(&options.client_cpus)?;
    if let Some(pid) = options.server_pid
        && !Path::new(&format!("/proc/{pid}")).exists()
    {
        return Err(Error::Unsuitable(format!(
            "--server-pid {pid}: there is no such process; name the server's, or leave it out, and the \
             one that listens is looked at"
        )));
    }
    let title = format!("{}: {}", options.socket.display(), describe(&load));
    let (table, mut run) = if options.verify {
        let progress = Progress::start("run", 1);
        progress.now("writing, then reading back");
        let seed = u64::from(std::process::id());
        let stream = connect(&options.socket)?;
        let verified = verify(stream, &load, options.load.time, seed)?;
        verified_report(title, verified)
    } else {
        let mut measured: Vec<Measured> = Vec::new();
        let progress = Progress::start("run", options.load.repetitions as usize);
        progress.now(describe(&load));
        for _ in 0..options.load.repetitions {
            let streams = vec![connect(&options.socket)?];
            let times = options.load.times();
            measured.push(measure(streams, &load, times, options.server_pid)?);
            progress.step();
        }
        measured_report(title, &measured)
    };
    run["socket"] = options.socket.display().to_string().into();
    run["load"] = load_json(&load);
    Ok((table, json!({ "run": run })))
}

/// Connects to a server.
///
/// # Errors
/// [`Error::Unsuitable`] when no process listens there; [`Error::Io`].
pub(crate) fn connect(socket: &Path) -> Result<UnixStream> {
    let shown = socket.display();
    UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Error::Unsuitable(format!(
            "no process listens on {shown}: is it a socket, and the server running? A dead server's socket stays behind"
        )),
        ErrorKind::NotFound => Error::Unsuitable(format!(
            "there is no socket {shown}: is the server running? `blockplane serve null-co: --socket {shown}` is one \
             to try with"
        )),
        ErrorKind::InvalidInput => Error::Unsuitable(format!(
            "{shown} is no path of a socket: it has {} bytes, and the kernel takes 107",
            socket.as_os_str().len()
        )),
        _ => Error::io(format!("connect to {shown}"))(error),
    })
}

/// A load in a few words.
#[must_use]
pub fn describe(load: &Load) -> String {
    let queues = match load.queues {
        1 => "1 queue".to_owned(),
        queues => format!("{queues} queues"),
    };
    format!(
        "{} {}, {queues}, depth {}, {} client{}",
        load.pattern,
        units::shown_bytes(load.block_bytes),
        load.depth,
        load.waiting,
        if load.recorded { ", recorded" } else { "" }
    )
}

/// A figure of one run.
pub type Figure = fn(&Measured) -> Option<f64>;

/// What there is to know of each repetition: for people, for scripts, how to get it.
const FIGURES: [(&str, &str, Figure); 9] = [
    ("IOPS", "iops", |run| Some(run.iops())),
    ("MB/s", "mb_per_s", |run| Some(run.mb_per_s())),
    ("latency p50, us", "latency_p50_us", |run| {
        Some(run.latency_us(50.0))
    }),
    ("latency p99, us", "latency_p99_us", |run| {
        Some(run.latency_us(99.0))
    }),
    ("latency p99.9, us", "latency_p99_9_us", |run| {
        Some(run.latency_us(99.9))
    }),
    ("latency max, us", "latency_max_us", |run| {
        Some(run.latency_us(100.0))
    }),
    (
        "server CPU ns per I/O",
        "server_cpu_ns_per_io",
        Measured::server_cpu_ns,
    ),
    (
        "server busiest thread, % of a CPU",
        "server_busiest_percent",
        |run| Some(100.0 * run.server?.busiest),
    ),
    ("client idle, %", "client_idle_percent", |run| {
        Some(100.0 * run.client_idle())
    }),
];

fn verified_report(title: String, verified: Verified) -> (Table, Value) {
    let mut table = Table::new(title, ["verified", "blocks"]);
    for (what, blocks) in [
        ("written", verified.writes),
        ("read meanwhile and compared", verified.checked),
        ("read back and compared", verified.read_back),
    ] {
        table.row([what.to_owned(), number(blocks as f64)]);
    }
    table.note("no difference was found");
    let verified = json!({
        "writes": verified.writes,
        "checked": verified.checked,
        "read_back": verified.read_back,
    });
    (table, json!({ "verified": verified }))
}

fn measured_report(title: String, measured: &[Measured]) -> (Table, Value) {
    let mut table = Table::new(title, ["", "median", "min", "max", "±"]);
    let mut run = json!({ "repetitions": measured.len() });
    for (name, key, figure) in FIGURES {
        let summary = Summary::of_runs(measured, figure);
        run[key] = summary.map_or(Value::Null, |summary| summary.json());
        if let Some(summary) = summary {
            let spread = format!("{:.1} %", summary.spread_percent());
            let [median, min, max] = [summary.median, summary.min, summary.max].map(number);
            table.row([name.to_owned(), median, min, max, spread]);
        }
    }
    let mut saturated: Vec<&str> = measured.iter().map(Measured::saturated).collect();
    run["saturated"] = saturated.clone().into();
    saturated.dedup();
    table.note(format!("saturated: {}", saturated.join(", then ")));
    if measured.iter().all(|one| one.server.is_none()) {
        table.note("the server's process is unknown: see --server-pid");
    }
    run["each"] = measured.iter().map(each_json).collect();
    (table, run)
}

/// Counts of one repetition, to be compared with those of the server. Times are of the monotonic clock.
fn each_json(measured: &Measured) -> Value {
    let thread = |tally: &Tally| {
        json!({
            "requests": tally.requests,
            "since_ns": tally.since_ns,
            "seconds": tally.elapsed.as_secs_f64(),
            "requests_in_all": tally.in_all,
            "course": tally.course,
        })
    };
    json!({
        "requests": measured.completed(),
        "requests_in_all": measured.threads.iter().map(|tally| tally.in_all).sum::<u64>(),
        "threads": measured.threads.iter().map(thread).collect::<Vec<_>>(),
    })
}

/// A load for scripts.
pub(crate) fn load_json(load: &Load) -> Value {
    json!({
        "pattern": load.pattern.to_string(),
        "read_percent": load.pattern.read_percent,
        "block_bytes": load.block_bytes,
        "depth": load.depth,
        "recorded": load.recorded,
        "queues": load.queues,
        "client": load.waiting.to_string(),
        "client_threads": load.threads,
    })
}
