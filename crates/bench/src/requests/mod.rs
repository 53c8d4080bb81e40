//! `bench requests`: reads per second through one queue, beside qemu-storage-daemon.
//!
//! The server runs on one processor, the client on another; both servers run all the time and are
//! loaded in turn, so that whatever else the machine does befalls both. A sanity check of speed,
//! not a benchmark of disks.

mod load;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Doorbells, DriverRing, Layout, READ_BYTES, Reads, Session, SharedMemory};
use crate::cpus::Pinned;
use crate::error::{Error, Result};
use crate::procfs;
use crate::progress::Progress;
use crate::random::Random;
use crate::server::{Backing, Disk, Server, blockplane, find_program, image_folder};
use crate::stats::{Summary, number};
use crate::table::Table;
pub use load::{Achieved, Load, Waiting};

/// Before each measurement: both sides' caches and polling windows settle.
const WARM_UP: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Reads in flight
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,32,128", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: Vec<u16>,
    /// How often each figure is measured; the median is shown
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Length of one repetition, in milliseconds
    #[arg(long, value_name = "MS", default_value = "1000")]
    pub run_ms: u64,
    /// Size of the file to read from, in MiB; it is written first
    #[arg(long, value_name = "MIB", default_value = "512", value_parser = clap::value_parser!(u64).range(1..))]
    pub file_mib: u64,
    /// Processor of the server
    #[arg(long, value_name = "CPU", default_value = "0")]
    pub server_cpu: usize,
    /// Processor of the client
    #[arg(long, value_name = "CPU", default_value = "1")]
    pub client_cpu: usize,
    /// The blockplane to measure [default: BLOCKPLANE_BIN, else one that is built now]
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,
    /// The server to compare with [default: qemu-storage-daemon, if it is installed]
    #[arg(long, value_name = "PATH")]
    pub peer: Option<PathBuf>,
    /// Measure blockplane alone
    #[arg(long, conflicts_with = "peer")]
    pub no_peer: bool,
    /// Only null-co, no file
    #[arg(long)]
    pub null_only: bool,
    /// Where to put the file for the time being [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
}

/// One server under one load.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Reads answered per second.
    pub iops: Summary,
    /// Time of all the server's threads per read, in nanoseconds.
    pub cpu_ns: Summary,
}

/// One load.
#[derive(Clone, Debug)]
pub struct Row {
    /// `null-co` or `file`.
    pub backing: &'static str,
    /// How the client waits.
    pub waiting: Waiting,
    /// Reads in flight.
    pub depth: u16,
    /// In order of [`Report::servers`].
    pub figures: Vec<Figure>,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    /// Names of the servers; ours is the first.
    pub servers: Vec<String>,
    /// A row for each load.
    pub rows: Vec<Row>,
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] with fewer than two processors; [`Error::Requests`] when a read fails;
/// [`Error::Server`] and others when a server does.
pub fn run(options: &Options) -> Result<Report> {
    let programs = programs(options)?;
    let backings = if options.null_only { 1 } else { 2 };
    let loads = backings * 2 * options.depth.len() * options.repetitions as usize;
    let progress = Progress::start("requests", loads);
    let mut report = Report {
        servers: programs.iter().map(|(name, _)| name.clone()).collect(),
        rows: Vec::new(),
    };
    report.rows.extend(measure(
        &programs,
        "null-co",
        Backing::Null,
        options,
        &progress,
    )?);
    if !options.null_only {
        progress.now("writing the file");
        let folder = image_folder(options.folder.as_deref())?;
        let path = folder.path().join("disk.img");
        write_file(&path, options.file_mib).map_err(Error::io(format!(
            "write {} MiB to {}",
            options.file_mib,
            path.display()
        )))?;
        report.rows.extend(measure(
            &programs,
            "file",
            Backing::File(path),
            options,
            &progress,
        )?);
    }
    Ok(report)
}

fn programs(options: &Options) -> Result<Vec<(String, PathBuf)>> {
    let ours = blockplane(options.server.as_deref())?;
    let mut programs = vec![("blockplane".to_owned(), ours)];
    let peer = match &options.peer {
        Some(peer) => Some(peer.clone()),
        None if options.no_peer => None,
        None => find_program("qemu-storage-daemon"),
    };
    if let Some(peer) = peer {
        let name = peer.file_name().unwrap_or(peer.as_os_str());
        programs.push((name.to_string_lossy().into_owned(), peer.clone()));
    }
    Ok(programs)
}

/// Not of zeroes, and on the disk: a hole would be read without it.
fn write_file(path: &Path, mib: u64) -> std::io::Result<()> {
    let mut random = Random::new(mib);
    let block: Vec<u8> = (0..1 << 17)
        .flat_map(|_| random.below(u64::MAX).to_ne_bytes())
        .collect();
    let mut file = File::create(path)?;
    for _ in 0..mib {
        file.write_all(&block)?;
    }
    file.sync_all()
}

fn measure(
    programs: &[(String, PathBuf)],
    name: &'static str,
    backing: Backing,
    options: &Options,
    progress: &Progress,
) -> Result<Vec<Row>> {
    let disk = Disk {
        backing,
        num_queues: 1,
    };
    let mut servers = Vec::new();
    for (_, program) in programs {
        // What we start runs where we do at that moment.
        let _pinned = Pinned::to(options.server_cpu)?;
        servers.push(Server::start(program, std::slice::from_ref(&disk))?);
    }
    let _pinned = Pinned::to(options.client_cpu)?;
    let mut rows = Vec::new();
    for waiting in [Waiting::Polling, Waiting::Blocking] {
        for &depth in &options.depth {
            let mut measured = vec![(Vec::new(), Vec::new()); servers.len()];
            for _ in 0..options.repetitions {
                progress.now(format!("{name}, {} client, depth {depth}", waiting.name()));
                for (server, (iops, cpu_ns)) in servers.iter_mut().zip(&mut measured) {
                    let run = Duration::from_millis(options.run_ms);
                    let (achieved, server_ns) =
                        load(server, waiting, depth, run).map_err(|error| server.explain(error))?;
                    iops.push(achieved.completed as f64 / achieved.elapsed.as_secs_f64());
                    cpu_ns.push(server_ns as f64 / achieved.completed as f64);
                }
                progress.step();
            }
            let figure = |(iops, cpu_ns): &(Vec<f64>, Vec<f64>)| {
                Some(Figure {
                    iops: Summary::of(iops)?,
                    cpu_ns: Summary::of(cpu_ns)?,
                })
            };
            rows.push(Row {
                backing: name,
                waiting,
                depth,
                figures: measured.iter().filter_map(figure).collect(),
            });
        }
    }
    for server in servers {
        server.stop()?;
    }
    Ok(rows)
}

/// Loads a server; says what it achieved and how long its threads ran for that.
fn load(
    server: &mut Server,
    waiting: Waiting,
    depth: u16,
    run: Duration,
) -> Result<(Achieved, u64)> {
    let mut session = Session::negotiate(server.connect(0)?)?;
    let mut layout = Layout::new();
    let place = layout.queue(Reads::queue_size(depth));
    let buffers = Reads::place(&mut layout, depth);
    let memory = SharedMemory::new(layout.len_bytes())?;
    session.share(&memory)?;
    let doorbells = Doorbells::new()?;
    session.start_queue(0, &memory, place, &doorbells)?;
    let mut load = Load::new(
        DriverRing::new(&memory, place),
        Reads::prepare(&memory, place, buffers),
        &doorbells,
        waiting,
        session.capacity_bytes() / READ_BYTES as u64,
    )?;
    load.run(WARM_UP)?;
    let cpu_ns = |server: &Server| Ok(procfs::total(&procfs::threads(server.pid())?).cpu_ns);
    let before_ns: u64 = cpu_ns(server)?;
    let achieved = load.run(run)?;
    let after_ns: u64 = cpu_ns(server)?;
    session.stop_queue(0)?;
    Ok((achieved, after_ns - before_ns))
}

impl Report {
    /// For whoever looks: how many reads, how much more than the peer, and what each cost.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut columns = vec!["4k random read, 1 queue".to_owned()];
        columns.extend(self.servers.iter().map(|server| format!("{server}, IOPS")));
        if self.servers.len() > 1 {
            columns.push("ratio".to_owned());
        }
        columns.extend(
            self.servers
                .iter()
                .map(|server| format!("{server}, CPU ns per read")),
        );
        let mut table = Table::new("Reads per second", &columns);
        for row in &self.rows {
            let Row {
                backing,
                waiting,
                depth,
                figures,
            } = row;
            let mut cells = vec![format!(
                "{backing}, {} client, depth {depth}",
                waiting.name()
            )];
            cells.extend(figures.iter().map(|figure| {
                format!(
                    "{} ±{:.0} %",
                    number(figure.iops.median),
                    figure.iops.spread_percent()
                )
            }));
            if let Some(ratio) = row.ratio() {
                cells.push(format!("{ratio:.2}x"));
            }
            cells.extend(figures.iter().map(|figure| number(figure.cpu_ns.median)));
            table.row(cells);
        }
        table.note("medians; the servers take turns; ratio: ours over the peer's");
        table.note("a server that polls uses its processor whether there is work or not: its time per read is no cost then");
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            let figures: serde_json::Map<String, Value> = self
                .servers
                .iter()
                .zip(&row.figures)
                .map(|(server, figure)| {
                    let figure = json!({
                        "iops": figure.iops.json(),
                        "cpu_ns_per_read": figure.cpu_ns.json(),
                    });
                    (server.clone(), figure)
                })
                .collect();
            json!({
                "backing": row.backing,
                "client": row.waiting.name(),
                "depth": row.depth,
                "servers": figures,
                "ratio": row.ratio(),
            })
        };
        json!({ "requests": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

impl Row {
    /// Ours over the peer's.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        match self.figures.as_slice() {
            [ours, peer, ..] => Some(ours.iops.median / peer.iops.median),
            _ => None,
        }
    }
}
