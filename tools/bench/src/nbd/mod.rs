//! `blockplane-bench nbd`: NBD servers with the same disk, under a load of fio's.

mod fio;
mod programs;

use std::time::Duration;

use serde_json::{Value, json};

use self::fio::Fio;
use self::programs::Program;
pub use self::programs::ProgramName;
use crate::aio::Aio;
use crate::compare::ratio_text;
use crate::comparison_options::ComparisonOptions;
use crate::cpus::Pinned;
use crate::error::{Error, Result};
use crate::procfs;
use crate::progress::Progress;
use crate::server::Disk;
use crate::stats::{Summary, number};
use crate::storage::BackingOption;
use crate::table::Table;
use crate::turns;
use crate::units;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Who takes part [default: ours, and of the others those that are installed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_enum)]
    pub servers: Vec<ProgramName>,
    /// What is behind the disk: null, file or tmpfs (temporary files there)
    #[arg(
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "null,tmpfs"
    )]
    pub backing: Vec<BackingOption>,
    /// What fio does: its --rw
    #[arg(
        long,
        value_name = "LOAD,…",
        value_delimiter = ',',
        default_value = "randread"
    )]
    pub rw: Vec<String>,
    /// Requests in flight
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,16,128",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub depth: Vec<u16>,
    /// Connections, each with that many requests in flight
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// Bytes of a request
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = units::block_bytes)]
    pub bs: u32,
    /// Iothreads of the servers that have some
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    pub iothreads: u16,
    /// How long each measurement is
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::time)]
    pub time: Duration,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Where things are.
    #[command(flatten)]
    pub place: ComparisonOptions,
}

/// One load.
struct Row {
    backing: String,
    load: Load,
    /// By server, then by repetition.
    measured: Vec<Vec<Measured>>,
}

/// What fio is to do.
#[derive(Clone, Debug)]
struct Load {
    rw: String,
    depth: u16,
    connections: u16,
    block_bytes: u32,
    time: Duration,
}

/// What one server did.
#[derive(Clone, Copy, Debug)]
struct Measured {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of all of the server's threads, per request.
    cpu_us: f64,
}

/// The figures.
pub struct Report {
    servers: Vec<&'static str>,
    rows: Vec<Row>,
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`] for a disk with data that is not ours, or when a program is not there; when a server or fio fails.
pub fn run(options: &Options) -> Result<Report> {
    options.place.check_cpus()?;
    if let Some(foreign) = options.backing.iter().find(|backing| backing.is_foreign()) {
        return Err(Error::Unsuitable(format!(
            "--backing {foreign}: the disk may be written to; null, file or tmpfs is expected"
        )));
    }
    let fio = Fio::find()?;
    let programs = Program::find(&options.servers, &options.place)?;
    let loads = loads(options);
    let steps = options.backing.len() * loads.len() * programs.len();
    let progress = Progress::start("nbd", steps * options.repetitions as usize);
    let mut rows = Vec::new();
    for wanted in &options.backing {
        progress.now(format!("making the disk: {wanted}"));
        let storage = wanted.storage(options.place.room(), Some(Aio::Native))?;
        let disk = Disk::of_one_queue(&storage.backing, true);
        for load in &loads {
            let mut measured = vec![Vec::new(); programs.len()];
            for repetition in 0..options.repetitions {
                for index in turns::of_repetition(repetition, programs.len()) {
                    let program = &programs[index];
                    progress.now(format!("{wanted}, {load}: {}", program.name));
                    let one = measure_once(program, &disk, load, &fio, options);
                    measured[index].push(one.map_err(|error| error.of(program.name))?);
                    progress.step();
                }
            }
            rows.push(Row {
                backing: wanted.to_string(),
                load: load.clone(),
                measured,
            });
        }
    }
    Ok(Report {
        servers: programs.iter().map(|program| program.name).collect(),
        rows,
    })
}

fn loads(options: &Options) -> Vec<Load> {
    let of = |rw: &String| {
        let loads = options.depth.iter().map(|&depth| Load {
            rw: rw.clone(),
            depth,
            connections: options.connections,
            block_bytes: options.bs,
            time: options.time,
        });
        loads.collect::<Vec<_>>()
    };
    options.rw.iter().flat_map(of).collect()
}

/// Each measurement has a server of its own: so a server that polls takes nothing from others.
fn measure_once(
    program: &Program,
    disk: &Disk,
    load: &Load,
    fio: &Fio,
    options: &Options,
) -> Result<Measured> {
    let mut server = {
        let _pinned = Pinned::to(&options.place.server_cpus)?;
        program.start(disk, options.iothreads)?
    };
    // It listens then.
    drop(server.connect(0)?);
    let before = procfs::cpu_ns_with_ended_threads(server.pid())?;
    let done = {
        let _pinned = Pinned::to(&options.place.client_cpus)?;
        fio.run(load, &server.first_socket())
    };
    let done = done.map_err(|error| server.explain(error))?;
    let used_ns = procfs::cpu_ns_with_ended_threads(server.pid())? - before;
    server.stop()?;
    Ok(Measured {
        iops: done.iops,
        p50_us: done.p50_us,
        p99_us: done.p99_us,
        cpu_us: used_ns as f64 / 1e3 / done.requests,
    })
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Load { rw, depth, .. } = self;
        write!(f, "{rw}, depth {depth}")
    }
}

impl Row {
    fn summary(&self, server: usize, value: impl Fn(&Measured) -> f64) -> Option<Summary> {
        Summary::of(&self.measured[server].iter().map(value).collect::<Vec<_>>())
    }

    /// IOPS of the first server over those of another one.
    fn ratio(&self, server: usize) -> Option<Summary> {
        let pairs = self.measured[0].iter().zip(&self.measured[server]);
        let ratios: Vec<f64> = pairs
            .map(|(first, other)| first.iops / other.iops)
            .collect();
        Summary::of(&ratios)
    }
}

impl Report {
    /// The table for people: a row for each load and server.
    #[must_use]
    pub fn table(&self) -> Table {
        let first = self.servers.first().copied().unwrap_or_default();
        let columns = [
            "load",
            "server",
            "IOPS",
            "p50 us",
            "p99 us",
            "CPU us/IO",
            &format!("IOPS of {first}"),
        ];
        let mut table = Table::new("NBD servers under fio", &columns.map(str::to_owned));
        for row in &self.rows {
            for (index, server) in self.servers.iter().enumerate() {
                let median = |value: &dyn Fn(&Measured) -> f64| {
                    row.summary(index, value)
                        .map_or_else(String::new, |summary| number(summary.median))
                };
                table.row([
                    format!("{}: {}", row.backing, row.load),
                    (*server).to_owned(),
                    median(&|measured| measured.iops),
                    median(&|measured| measured.p50_us),
                    median(&|measured| measured.p99_us),
                    median(&|measured| measured.cpu_us),
                    match index {
                        0 => String::new(),
                        _ => row
                            .ratio(index)
                            .map_or_else(String::new, |ratio| ratio_text(&ratio)),
                    },
                ]);
            }
        }
        table.note(format!(
            "IOPS of {first}: over those of the server of the row, by repetition: median (lowest-highest)"
        ));
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            let servers = self.servers.iter().enumerate().map(|(index, server)| {
                let summary = |value: &dyn Fn(&Measured) -> f64| {
                    row.summary(index, value).map(|summary| summary.json())
                };
                json!({
                    "server": server,
                    "iops": summary(&|measured| measured.iops),
                    "p50_us": summary(&|measured| measured.p50_us),
                    "p99_us": summary(&|measured| measured.p99_us),
                    "cpu_us_per_io": summary(&|measured| measured.cpu_us),
                    "iops_ratio_of_first": row.ratio(index).map(|ratio| ratio.json()),
                })
            });
            json!({
                "backing": row.backing,
                "rw": row.load.rw,
                "depth": row.load.depth,
                "connections": row.load.connections,
                "block_bytes": row.load.block_bytes,
                "figures": servers.collect::<Value>(),
            })
        };
        json!({ "nbd": self.rows.iter().map(row).collect::<Value>() })
    }
}
