//! Servers that differ in one mechanism or setting, under the same loads in turn.
//!
//! All of them run all the time; one that is not loaded sleeps.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use bench::aio::Aio;
use bench::load::{Load, Measured, measure, raw};
use bench::progress::Progress;
use bench::server::{Disk, Server, Threads};
use bench::stats::{Summary, in_turn};
use bench::storage::{Backing, BackingOption};
use bench::table::Table;
use bench::{Error, Result, units};

use crate::idle_queues::{self, IdleQueues};
use crate::scsi_load::{LsiRequestOptions, measure_lsi, measure_virtio_scsi};
use crate::setup::Setup;

/// The device over which requests reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessPath {
    VirtioBlk,
    VirtioScsi,
    Lsi(LsiRequestOptions),
    /// No server at all.
    Host,
}

/// Queues of the disk that is loaded, as many as a load has at most.
const QUEUES: u16 = 8;

/// One of the servers.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// For tables.
    pub name: String,
    /// The patch that it was built with. Without such a program the variant is left out.
    pub patch: Option<&'static str>,
    /// Options of the iothread.
    pub iothread: String,
    pub access: AccessPath,
    /// Other disks, whose queues are started and idle.
    pub idle_disks: u16,
}

impl Variant {
    /// blockplane as it is.
    pub fn new(name: &str) -> Self {
        Variant {
            name: name.to_owned(),
            patch: None,
            iothread: String::new(),
            access: AccessPath::VirtioBlk,
            idle_disks: 0,
        }
    }

    /// A server that was built with a patch.
    pub fn patched(name: &str, patch: &'static str) -> Self {
        Variant {
            patch: Some(patch),
            ..Variant::new(name)
        }
    }
}

/// A question: servers, loads, and what to show.
pub(crate) struct Contest<'c> {
    pub title: &'c str,
    pub variants: Vec<Variant>,
    pub loads: Vec<Load>,
    /// What is shown of a load, and its unit.
    pub unit: Unit,
    /// Of variants: how many times as fast the first one is as the second one.
    pub ratios: &'c [(&'c str, &'c str)],
}

/// How fast a load is.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Iops,
    Megabytes,
}

impl Unit {
    fn of(self, run: &Measured) -> Option<f64> {
        Some(match self {
            Unit::Iops => run.iops(),
            Unit::Megabytes => run.mb_per_s(),
        })
    }
}

/// A running server, or the host.
struct Running {
    variant: Variant,
    server: Option<Server>,
    idle: Vec<IdleQueues>,
}

impl Running {
    fn start(variant: Variant, backing: &Backing, writable: bool, setup: &Setup) -> Result<Self> {
        let mut disk = Disk::virtio(backing, QUEUES, writable);
        match variant.access {
            AccessPath::VirtioBlk => {}
            AccessPath::VirtioScsi => disk.export = "vhost-user-scsi".to_owned(),
            AccessPath::Lsi(_) => disk.export = "vfio-user-lsi53c895a".to_owned(),
            AccessPath::Host => {
                return Ok(Running {
                    variant,
                    server: None,
                    idle: Vec::new(),
                });
            }
        }
        let patched = variant.patch.and_then(|patch| setup.patched(patch));
        let program = patched.map_or_else(|| setup.ours(), Ok)?;
        let mut disks = vec![disk];
        disks.extend((0..variant.idle_disks).map(|_| idle_queues::disk()));
        let threads = Threads {
            count: 1,
            options: &variant.iothread,
        };
        let mut server = Server::start(&program, &setup.place.server_cpus, threads, &[], &disks)?;
        let idle = (1..disks.len()).map(|disk| idle_queues::start(&mut server, disk));
        let idle = idle.collect::<Result<_>>();
        let idle = idle.map_err(|error| server.explain(error))?;
        Ok(Running {
            variant,
            server: Some(server),
            idle,
        })
    }

    fn measure(&mut self, backing: &Backing, load: &Load, setup: &Setup) -> Result<Measured> {
        let times = setup.times();
        let Some(server) = &mut self.server else {
            return match backing {
                Backing::File(path, _) | Backing::Device(path, _) => {
                    raw::measure(path, Aio::Native, load, &setup.place.server_cpus, times)
                }
                other => Err(Error::Unsuitable(format!("the host has no {other:?}"))),
            };
        };
        let stream = server.connect(0)?;
        let pid = Some(server.pid());
        let measured = match self.variant.access {
            AccessPath::Lsi(options) => measure_lsi(stream, options, load, times, pid),
            AccessPath::VirtioScsi => measure_virtio_scsi(stream, load, times, pid),
            AccessPath::VirtioBlk | AccessPath::Host => measure(stream, load, times, pid),
        };
        measured.map_err(|error| server.explain(error).of(&self.variant.name))
    }
}

impl Contest<'_> {
    /// Measures, and makes two tables for each backing: how fast, and what a request cost the server.
    pub fn run(mut self, setup: &Setup, backings: &[BackingOption]) -> Result<Vec<Table>> {
        let is_there = |variant: &Variant| {
            let patch = variant.patch;
            patch.is_none_or(|patch| setup.patched(patch).is_some())
        };
        let (variants, missing): (Vec<_>, Vec<_>) = self.variants.into_iter().partition(is_there);
        self.variants = Vec::new();
        let mut tables = Vec::new();
        for wanted in setup.backings(backings) {
            let mut loads = self.loads.clone();
            if wanted.is_foreign() {
                loads.retain(|load| !load.pattern.writes());
            }
            let mut variants = variants.clone();
            if wanted == BackingOption::Null {
                variants.retain(|variant| variant.access != AccessPath::Host);
            }
            let title = format!("{}: {wanted}", self.title);
            let steps = loads.len() * variants.len() * setup.repetitions as usize;
            let progress = Progress::start(&title, steps);
            progress.now("making the disk");
            let storage = wanted.storage(setup.place.room(), Some(Aio::Native))?;
            let backing = &storage.backing;
            let bytes = bytes(backing)?;
            loads.iter_mut().for_each(|load| load.span_bytes = bytes);
            let writable = loads.iter().any(|load| load.pattern.writes());
            progress.now("starting servers");
            let running = variants
                .into_iter()
                .map(|variant| Running::start(variant, backing, writable, setup));
            let mut running = running.collect::<Result<Vec<_>>>()?;
            let mut runs = Vec::new();
            for load in &loads {
                runs.push(in_turn(running.len(), setup.repetitions, |index| {
                    let one = &mut running[index];
                    progress.now(format!("{}: {}", name(load), one.variant.name));
                    let run = one.measure(backing, load, setup);
                    progress.step();
                    run
                })?);
            }
            let names: Vec<String> = running.iter().map(|one| one.variant.name.clone()).collect();
            let mut costs = costs(&names, &loads, &runs);
            for Running {
                variant,
                server,
                idle,
            } in running
            {
                drop(idle);
                let counted = counters(&server.map_or(Ok(String::new()), Server::stop)?);
                if !counted.is_empty() {
                    costs.note(format!("{}: {counted}", variant.name));
                }
            }
            let mut rates = self.rates(&title, &names, &loads, &runs);
            for variant in &missing {
                rates.note(format!(
                    "{}: not measured, since no blockplane with the patch {} was named; see `cargo xtask experiments`",
                    variant.name,
                    variant.patch.unwrap_or_default()
                ));
            }
            tables.extend([rates, costs]);
        }
        Ok(tables)
    }

    fn rates(
        &self,
        title: &str,
        names: &[String],
        loads: &[Load],
        runs: &[Vec<Vec<Measured>>],
    ) -> Table {
        let place = |name: &str| names.iter().position(|other| other == name);
        let pairs = self.ratios.iter().filter_map(|(of, over)| {
            let heading = format!("{of} / {over}");
            Some((heading, place(of)?, place(over)?))
        });
        let pairs: Vec<_> = pairs.collect();
        let first = match self.unit {
            Unit::Iops => "IOPS, random",
            Unit::Megabytes => "MB/s, random",
        };
        let mut columns = vec![first.to_owned()];
        columns.extend_from_slice(names);
        columns.extend(pairs.iter().map(|(heading, ..)| heading.clone()));
        let mut table = Table::new(title, &columns);
        for (load, runs) in loads.iter().zip(runs) {
            let figure = |run: &Measured| self.unit.of(run);
            let mut row = vec![name(load)];
            row.extend(runs.iter().map(|runs| {
                Summary::of_runs(runs, figure).map_or_else(String::new, |it| it.mean_text())
            }));
            row.extend(pairs.iter().map(|&(_, of, over)| {
                let ratio = Summary::of_ratios(&runs[of], &runs[over], figure);
                ratio.map_or_else(String::new, |ratio| ratio.ratio_text())
            }));
            table.row(row);
        }
        table.note("mean of all repetitions ± its standard error in percent; ratio: median (lowest-highest) of pairs");
        table
    }
}

/// The size of the disk.
fn bytes(backing: &Backing) -> Result<u64> {
    match backing {
        Backing::File(path, _) | Backing::Device(path, _) => File::open(path)
            .and_then(|mut file| file.seek(SeekFrom::End(0)))
            .map_err(Error::io("ask for a file's size")),
        _ => Ok(1 << 30),
    }
}

/// `4k read, depth 8, 2 queues`
fn name(load: &Load) -> String {
    let kind = if load.pattern.writes() {
        "write"
    } else {
        "read"
    };
    let queues = match load.queues {
        1 => "1 queue".to_owned(),
        queues => format!("{queues} queues"),
    };
    let block = units::shown_bytes(load.block_bytes.into());
    format!("{block} {kind}, depth {}, {queues}", load.depth)
}

/// Processor time of the server per request, and how often one of its threads went to sleep.
fn costs(names: &[String], loads: &[Load], runs: &[Vec<Vec<Measured>>]) -> Table {
    let mut columns = vec!["CPU ns (sleeps) per request".to_owned()];
    columns.extend_from_slice(names);
    let mut table = Table::new("What a request cost the server", &columns);
    let sleeps = |run: &Measured| {
        let used = run.server.as_ref()?.used.voluntary_switches as f64;
        Some(used / run.completed().max(1) as f64)
    };
    for (load, runs) in loads.iter().zip(runs) {
        let mut row = vec![name(load)];
        row.extend(runs.iter().map(|runs| {
            let cpu = Summary::of_runs(runs, Measured::server_cpu_ns);
            let both = cpu.zip(Summary::of_runs(runs, sleeps));
            both.map_or_else(String::new, |(cpu, sleeps)| {
                format!("{} ({:.3})", cpu.mean_text(), sleeps.mean)
            })
        }));
        table.row(row);
    }
    table.note("a server that polls uses its processor whether there is work or not; the host's are the load's own");
    table
}

/// What a server has counted in all its life, from its log: requests that Linux AIO took, its calls, and what some patches count.
fn counters(log: &str) -> String {
    const NAMES: [&str; 6] = [
        "submitted",
        "submit_calls",
        "largest_batch",
        "getevents_calls",
        "handlers_scanned",
        "max_batch",
    ];
    let last = |name: &&str| {
        let mut words = log.split_ascii_whitespace().rev();
        words.find(|word| word.split_once('=').is_some_and(|(key, _)| key == *name))
    };
    let found: Vec<&str> = NAMES.iter().filter_map(last).collect();
    found.join(", ")
}
