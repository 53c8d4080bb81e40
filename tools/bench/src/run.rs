//! `blockplane-bench run`: a load on a server that is already running, blockplane or another.

mod load_options;

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cpus;
use crate::error::{Error, Result};
use crate::load::{Load, Measured, Tally, Verified, Waiting, measure, verify};
use crate::progress::Progress;
use crate::stats::{Summary, count, number};
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

/// What came of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Of each repetition.
    Measured(Vec<Measured>),
    /// Of `--verify`.
    Verified(Verified),
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    socket: PathBuf,
    load: Load,
    /// What came of it.
    pub outcome: Outcome,
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] for a load that the disk is not for; what [`measure`] and [`verify`] say.
pub fn run(options: &Options) -> Result<Report> {
    let mut load = options
        .load
        .load(options.depth, options.client, &options.client_cpus, 1)?;
    load.detail.mark_interval = options.status_interval;
    if load.pattern.writes() && !options.load.destroy_data {
        return Err(Error::Unsuitable(format!(
            "{} writes to the disk, and what is on it is lost: say --destroy-data if that is meant",
            load.pattern
        )));
    }
    if options.verify && !load.pattern.writes() {
        return Err(Error::Unsuitable(format!(
            "--verify needs a pattern that writes, such as randrw; {} does not",
            load.pattern
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
    let report = |outcome| Report {
        socket: options.socket.clone(),
        load: load.clone(),
        outcome,
    };
    let seconds = options.load.time.as_secs_f64();
    if options.verify {
        let progress = Progress::start("run", 1);
        progress.now(format!("writing for {seconds} s, then reading back"));
        let seed = u64::from(std::process::id());
        let verified = verify(connect(&options.socket)?, &load, options.load.time, seed)?;
        return Ok(report(Outcome::Verified(verified)));
    }
    let progress = Progress::start("run", options.load.repetitions as usize);
    let mut measured: Vec<Measured> = Vec::new();
    for _ in 0..options.load.repetitions {
        let last = measured.last().map(|last| number(last.iops()));
        let last = last.map_or(String::new(), |iops| format!("; the last had {iops} IOPS"));
        progress.now(format!("{} for {seconds} s each{last}", describe(&load)));
        let stream = connect(&options.socket)?;
        measured.push(measure(
            stream,
            &load,
            options.load.times(),
            options.server_pid,
        )?);
        progress.step();
    }
    Ok(report(Outcome::Measured(measured)))
}

/// Connects to a server.
///
/// # Errors
/// [`Error::Unsuitable`] when no process listens there; [`Error::Io`].
pub(crate) fn connect(socket: &Path) -> Result<UnixStream> {
    let shown = socket.display();
    let unsuitable = |why: String| Error::Unsuitable(why);
    UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused if !is_socket(socket) => unsuitable(format!(
            "{shown} is not a socket: name the one on which the server listens"
        )),
        ErrorKind::ConnectionRefused => unsuitable(format!(
            "no process listens on {shown}: is the server running? A dead server's socket stays behind"
        )),
        ErrorKind::NotFound => unsuitable(format!(
            "there is no socket {shown}: is the server running? `blockplane serve null-co: --socket \
             {shown}` is one to try with"
        )),
        ErrorKind::InvalidInput => unsuitable(format!(
            "{shown} is no path of a socket: it has {} bytes, and the kernel takes 107; a path that \
             begins in the socket's folder, or a symbolic link to that, is shorter",
            socket.as_os_str().len()
        )),
        ErrorKind::PermissionDenied => unsuitable(format!(
            "{shown} may not be written to: be the user that the server runs as"
        )),
        _ => Error::io(format!("connect to {shown}"))(error),
    })
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
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
        units::shown_bytes(load.block_bytes.into()),
        load.depth,
        load.waiting.name(),
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
        run.latency_us(50.0)
    }),
    ("latency p99, us", "latency_p99_us", |run| {
        run.latency_us(99.0)
    }),
    ("latency p99.9, us", "latency_p99_9_us", |run| {
        run.latency_us(99.9)
    }),
    ("latency max, us", "latency_max_us", |run| {
        run.latency_us(100.0)
    }),
    (
        "server CPU ns per I/O",
        "server_cpu_ns_per_io",
        Measured::server_cpu_ns,
    ),
    (
        "server busiest thread, % of a CPU",
        "server_busiest_percent",
        |measured| {
            let server = measured.server.as_ref()?;
            Some(100.0 * server.busiest_ns as f64 / server.watched_ns as f64)
        },
    ),
    ("client idle, %", "client_idle_percent", |measured| {
        Some(100.0 * measured.client_idle())
    }),
];

impl Report {
    /// The table for people.
    #[must_use]
    pub fn table(&self) -> Table {
        let title = format!("{}: {}", self.socket.display(), describe(&self.load));
        match &self.outcome {
            Outcome::Measured(measured) => measured_table(&title, measured),
            Outcome::Verified(verified) => {
                let mut table = Table::new(&title, &["verified".to_owned(), "blocks".to_owned()]);
                for (what, blocks) in [
                    ("written", verified.writes),
                    ("read meanwhile and compared", verified.checked),
                    ("read back and compared", verified.read_back),
                ] {
                    table.row([what.to_owned(), count(blocks)]);
                }
                table.note("no difference was found");
                table
            }
        }
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut run = json!({
            "socket": self.socket.display().to_string(),
            "load": load_json(&self.load),
        });
        match &self.outcome {
            Outcome::Measured(measured) => {
                for (_, key, figure) in FIGURES {
                    let summary = Summary::of_runs(measured, figure);
                    run[key] = summary.map_or(Value::Null, |summary| summary.json());
                }
                run["repetitions"] = measured.len().into();
                run["each"] = measured.iter().map(each_json).collect();
                run["saturated"] = measured.iter().map(|one| one.saturated().name()).collect();
            }
            Outcome::Verified(verified) => {
                run["verified"] = json!({
                    "writes": verified.writes,
                    "checked": verified.checked,
                    "read_back": verified.read_back,
                });
            }
        }
        json!({ "run": run })
    }
}

/// Counts of one repetition, to be compared with those of the server. Times are of the monotonic clock.
fn each_json(measured: &Measured) -> Value {
    let thread = |tally: &Tally| {
        let course = tally.course.iter();
        json!({
            "requests": tally.requests,
            "since_ns": tally.since_ns,
            "seconds": tally.elapsed.as_secs_f64(),
            "requests_in_all": tally.in_all,
            "course": course.map(|mark| json!([mark.at_ns, mark.completed])).collect::<Vec<_>>(),
        })
    };
    json!({
        "requests": measured.completed(),
        "requests_in_all": measured.threads.iter().map(|tally| tally.in_all).sum::<u64>(),
        "threads": measured.threads.iter().map(thread).collect::<Vec<_>>(),
    })
}

fn measured_table(title: &str, measured: &[Measured]) -> Table {
    let columns = ["", "median", "min", "max", "±"].map(str::to_owned);
    let mut table = Table::new(title, &columns);
    for (name, _, figure) in FIGURES {
        if let Some(summary) = Summary::of_runs(measured, figure) {
            table.row([
                name.to_owned(),
                number(summary.median),
                number(summary.min),
                number(summary.max),
                format!("{:.1} %", summary.spread_percent()),
            ]);
        }
    }
    let mut saturated: Vec<&str> = measured.iter().map(|one| one.saturated().name()).collect();
    saturated.dedup();
    table.note(format!("saturated: {}", saturated.join(", then ")));
    if measured.iter().all(|one| one.server.is_none()) {
        table.note("the server's process is unknown: see --server-pid");
    }
    table
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
        "client": load.waiting.name(),
        "client_threads": load.threads,
    })
}
