//! `bench compare`: the same load on several servers and on the host itself, in turn in one run.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::aio::Aio;
use crate::arena::{Arena, Contender, Figure, Ground, Row, Times};
use crate::error::{Error, Result};
use crate::load::{Measured, Waiting};
use crate::program::{blockplane, find_program};
use crate::progress::Progress;
use crate::run::{LoadOptions, describe, latency_us, load_json};
use crate::stats::{Summary, number};
use crate::storage::{Backing, Room, Wanted};
use crate::table::Table;
use crate::units;

const PEER: &str = "qemu-storage-daemon";

/// Where things are; for `compare` and `targets`.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Size of a temporary file; it is filled with random data first
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::bytes)]
    pub size: u64,
    /// Where to put temporary files [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub folder: Option<PathBuf>,
    /// The blockplane to measure [default: BLOCKPLANE_BIN, else this one]
    #[arg(long, value_name = "PATH")]
    pub server: Option<PathBuf>,
    /// The qemu-storage-daemon to compare with [default: the one in PATH]
    #[arg(long, value_name = "PATH")]
    pub peer: Option<PathBuf>,
    /// Processors that servers run on, and the host's own load
    #[arg(long, value_name = "CPU,…", value_delimiter = ',', default_value = "0")]
    pub server_cpus: Vec<usize>,
    /// Processors that the client's threads run on, in turn
    #[arg(long, value_name = "CPU,…", value_delimiter = ',', default_value = "1")]
    pub client_cpus: Vec<usize>,
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Who takes part: ours, raw[:ENGINE] (the host without a server), qemu-storage-daemon[:ENGINE];
    /// the engine is native, io_uring or threads [default: ours, raw where there is storage, and
    /// qemu-storage-daemon where it is installed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub servers: Vec<Contender>,
    /// A server that runs already takes part too; may be repeated
    #[arg(long, value_name = "PATH")]
    pub socket: Vec<PathBuf>,
    /// What is behind the disk: null, file or tmpfs (temporary files there), or a file or block device
    #[arg(
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "file"
    )]
    pub backing: Vec<Wanted>,
    /// Requests in flight on each queue, 1 to 512
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,32,128", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub depth: Vec<u16>,
    /// How the client, and the host's own load, learns of completions
    #[arg(
        long,
        value_name = "HOW,…",
        value_delimiter = ',',
        value_enum,
        default_value = "polling"
    )]
    pub client: Vec<Waiting>,
    /// The engine of ours, and of qemu-storage-daemon if it names none [default: our own choice, and native]
    #[arg(long, value_name = "ENGINE", value_enum)]
    pub aio: Option<Aio>,
    /// Iothreads of ours; qemu-storage-daemon has one per disk
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub iothreads: u16,
    /// Longest polling of ours, in nanoseconds [default: the server's]
    #[arg(long, value_name = "NS")]
    pub poll_max_ns: Option<u64>,
    /// More options of our iothreads
    #[arg(long, value_name = "KEY=VALUE,…")]
    pub iothread: Option<String>,
    /// One more word for our server's command line; may be repeated
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub server_option: Vec<String>,
    /// Let the kernel decide who runs where
    #[arg(long)]
    pub no_pinning: bool,
    /// Where things are.
    #[command(flatten)]
    pub place: Place,
    /// The load.
    #[command(flatten)]
    pub load: LoadOptions,
}

/// All loads on one backing.
#[derive(Clone, Debug)]
pub struct Part {
    /// What was behind the disk.
    pub backing: String,
    /// Names.
    pub contenders: Vec<String>,
    /// A row for each load.
    pub rows: Vec<Row>,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    /// One for each backing.
    pub parts: Vec<Part>,
    notes: Vec<String>,
}

impl Place {
    pub(crate) fn room(&self) -> Room<'_> {
        Room {
            folder: self.folder.as_deref(),
            bytes: self.size,
        }
    }

    /// The peer, if there is one.
    pub(crate) fn peer(&self) -> Option<PathBuf> {
        self.peer.clone().or_else(|| find_program(PEER))
    }
}

impl Options {
    fn contenders(&self, backing: &Backing, peer: Option<&Path>) -> Vec<Contender> {
        let mut contenders = self.servers.clone();
        if contenders.is_empty() {
            contenders.push(Contender::Ours);
            contenders.push(Contender::Raw(Aio::Native));
            contenders.extend(peer.map(|_| Contender::Peer(None)));
        }
        contenders.extend(self.socket.iter().cloned().map(Contender::Socket));
        if *backing == Backing::Null {
            contenders.retain(|contender| !matches!(contender, Contender::Raw(_)));
        }
        contenders
    }

    fn check(&self) -> Result<()> {
        let pattern = self.load.pattern()?;
        let theirs = self.backing.iter().find(|it| it.is_somebody_elses());
        let socket = || Some(self.socket.first()?.display().to_string());
        let somebody_elses = theirs.map(Wanted::to_string).or_else(socket);
        if let (true, false, Some(whose)) =
            (pattern.writes(), self.load.destroy_data, somebody_elses)
        {
            return Err(Error::Unsuitable(format!(
                "{pattern} writes to {whose}, and what is on it is lost: say --destroy-data if that \
                 is meant"
            )));
        }
        if self.iothreads > self.load.queues {
            return Err(Error::Unsuitable(format!(
                "--iothreads {} is more than --queues {}: a thread without a queue has nothing to do",
                self.iothreads, self.load.queues
            )));
        }
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] for options that do not go together; when a request or a server fails.
pub fn run(options: &Options) -> Result<Report> {
    options.check()?;
    let peer = options.place.peer();
    let mut report = Report {
        parts: Vec::new(),
        notes: Vec::new(),
    };
    if options.servers.is_empty() && peer.is_none() {
        report.notes.push(format!("{PEER} is not installed"));
    }
    let (server_cpus, client_cpus) = if options.no_pinning {
        (Vec::new(), Vec::new())
    } else {
        (
            options.place.server_cpus.clone(),
            options.place.client_cpus.clone(),
        )
    };
    let mut iothread_options: Vec<String> = Vec::new();
    iothread_options.extend(options.poll_max_ns.map(|ns| format!("poll-max-ns={ns}")));
    iothread_options.extend(options.iothread.clone());
    let times = Times {
        warm_up: options.load.warm_up,
        time: options.load.time,
        repetitions: options.load.repetitions,
    };
    for wanted in &options.backing {
        let storage = {
            let progress = Progress::start("compare", 1);
            progress.now(format!("making the disk: {wanted}"));
            wanted.storage(options.place.room(), options.aio)?
        };
        let contenders = options.contenders(&storage.backing, peer.as_deref());
        let steps = contenders.len()
            * options.client.len()
            * options.depth.len()
            * times.repetitions as usize;
        let progress = Progress::start(&format!("compare, {wanted}"), steps);
        let ground = Ground {
            ours: blockplane(options.place.server.as_deref())?,
            peer: peer.clone(),
            backing: storage.backing.clone(),
            queues: options.load.queues,
            writable: options.load.pattern()?.writes(),
            iothreads: options.iothreads,
            iothread_options: iothread_options.join(","),
            server_options: options.server_option.clone(),
            server_cpus: server_cpus.clone(),
        };
        let mut arena = Arena::open(ground, &contenders)?;
        let mut rows = Vec::new();
        for &client in &options.client {
            for &depth in &options.depth {
                let load = options.load.load(depth, client, &client_cpus)?;
                rows.push(arena.row(&load, times, &progress)?);
            }
        }
        arena.close()?;
        report.parts.push(Part {
            backing: wanted.to_string(),
            contenders: contenders.iter().map(Contender::to_string).collect(),
            rows,
        });
    }
    Ok(report)
}

/// What is shown of each contender: for people, for scripts, how to get it.
const FIGURES: [(&str, &str, Figure); 4] = [
    ("IOPS", "iops", |measured| Some(measured.iops())),
    ("CPU ns/IO", "cpu_ns_per_io", Measured::server_cpu_ns),
    ("p50 us", "latency_p50_us", |measured| {
        latency_us(measured, 50.0)
    }),
    ("p99 us", "latency_p99_us", |measured| {
        latency_us(measured, 99.0)
    }),
];

/// `0.98 (0.97-1.01)`
pub(crate) fn ratio_text(ratio: &Summary) -> String {
    let number = |value: f64| format!("{value:.2}");
    format!(
        "{}x ({}-{})",
        number(ratio.median),
        number(ratio.min),
        number(ratio.max)
    )
}

impl Report {
    /// For whoever looks: a row for each load and contender.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = self.parts.iter().map(Part::table).collect();
        if let Some(last) = tables.last_mut() {
            last.note("medians; the contenders take turns");
            last.note(
                "ratio: the first one over this one, in pairs of repetitions: median (lowest-highest)",
            );
            last.note(
                "CPU: a server that polls uses its processor whether there is work or not; of raw it \
                 is the load's own",
            );
            for note in &self.notes {
                last.note(note.clone());
            }
        }
        tables
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "compare": self.parts.iter().map(Part::json).collect::<Vec<_>>() })
    }
}

impl Part {
    fn table(&self) -> Table {
        let mut columns = vec!["load".to_owned(), "server".to_owned()];
        columns.extend(["IOPS", "±"].map(str::to_owned));
        columns.extend(FIGURES[1..].iter().map(|(name, ..)| (*name).to_owned()));
        columns.extend(["ratio IOPS", "ratio CPU", "saturated"].map(str::to_owned));
        let mut table = Table::new(&format!("Backing: {}", self.backing), &columns);
        for row in &self.rows {
            for (index, name) in self.contenders.iter().enumerate() {
                let load = if index == 0 {
                    describe(&row.load)
                } else {
                    String::new()
                };
                let mut cells = vec![load, name.clone()];
                let iops = row.summary(index, FIGURES[0].2);
                cells.push(iops.map_or_else(String::new, |iops| number(iops.median)));
                cells.push(iops.map_or_else(String::new, |iops| {
                    format!("{:.1} %", iops.spread_percent())
                }));
                cells.extend(FIGURES[1..].iter().map(|(_, _, figure)| {
                    let summary = row.summary(index, *figure);
                    summary.map_or_else(|| "-".to_owned(), |summary| number(summary.median))
                }));
                for (_, _, figure) in &FIGURES[..2] {
                    let ratio = row.ratio(0, index, *figure).filter(|_| index > 0);
                    cells.push(ratio.map_or_else(String::new, |ratio| ratio_text(&ratio)));
                }
                cells.push(saturated(&row.measured[index], name));
                table.row(cells);
            }
        }
        table
    }

    fn json(&self) -> Value {
        let row = |row: &Row| {
            let mut servers = Map::new();
            for (index, name) in self.contenders.iter().enumerate() {
                let mut figures = Map::new();
                for (_, key, figure) in FIGURES {
                    let summary = row.summary(index, figure).map(|summary| summary.json());
                    figures.insert(key.to_owned(), summary.unwrap_or(Value::Null));
                }
                for (key, figure) in [("ratio_iops", FIGURES[0].2), ("ratio_cpu", FIGURES[1].2)] {
                    let ratio = row.ratio(0, index, figure).filter(|_| index > 0);
                    let ratio = ratio.map_or(Value::Null, |ratio| ratio.json());
                    figures.insert(key.to_owned(), ratio);
                }
                servers.insert(name.clone(), Value::Object(figures));
            }
            json!({ "load": load_json(&row.load), "servers": servers })
        };
        json!({
            "backing": self.backing,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// Who was at the end of its strength in most repetitions; without a server there is nobody to ask.
fn saturated(measured: &[Measured], name: &str) -> String {
    if name.starts_with("raw:") {
        return String::new();
    }
    let mut names: Vec<&str> = measured.iter().map(|one| one.saturated().who()).collect();
    names.sort_unstable();
    names.get(names.len() / 2).copied().unwrap_or("").to_owned()
}
