//! Servers that differ in one mechanism or setting, under the same loads in turn.
//!
//! All of them run all the time; one that is not loaded sleeps.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use bench::aio::Aio;
use bench::load::{Load, Measured, measure, raw};
use bench::program::blockplane;
use bench::server::{Disk, Server, Threads};
use bench::stats::{Summary, in_turn, number};
use bench::storage::{Backing, Storage};
use bench::table::Table;
use bench::{Error, Result, units};

use crate::Setup;
use crate::idle_queues::{self, IdleQueues};
use crate::scsi_load::{LsiRequestOptions, measure_lsi, measure_virtio_scsi};

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
pub(crate) struct Contest {
    pub title: &'static str,
    pub variants: Vec<Variant>,
    pub loads: Vec<Load>,
    /// A load is shown in megabytes per second, else in requests.
    pub in_megabytes: bool,
    /// Of variants: how many times as fast the first one is as the second one.
    pub ratios: &'static [(&'static str, &'static str)],
    pub notes: &'static [&'static str],
}

/// A running server, or the host.
struct Running<'v> {
    variant: &'v Variant,
    server: Option<Server>,
    _idle: Vec<IdleQueues>,
}

impl<'v> Running<'v> {
    fn start(
        variant: &'v Variant,
        storage: &Storage,
        writable: bool,
        setup: &Setup,
    ) -> Result<Self> {
        let mut disk = Disk::virtio(storage, Some(Aio::Native), QUEUES, writable);
        match variant.access {
            AccessPath::VirtioBlk | AccessPath::Host => {}
            AccessPath::VirtioScsi => disk.export = "vhost-user-scsi".to_owned(),
            AccessPath::Lsi(_) => disk.export = "vfio-user-lsi53c895a".to_owned(),
        }
        if variant.access == AccessPath::Host {
            return Ok(Running {
                variant,
                server: None,
                _idle: Vec::new(),
            });
        }
        let patched = variant.patch.and_then(|patch| setup.patched(patch));
        let program = patched.map_or_else(|| blockplane(setup.places.server.as_deref()), Ok)?;
        let mut disks = vec![disk];
        for _ in 0..variant.idle_disks {
            disks.push(idle_queues::disk(setup)?);
        }
        let threads = Threads {
            count: 1,
            options: &variant.iothread,
        };
        let mut server = Server::start(&program, &setup.places.server_cpus, threads, &[], &disks)?;
        let idle = (1..disks.len()).map(|disk| idle_queues::start(&mut server, disk));
        let idle = idle.collect::<Result<_>>();
        Ok(Running {
            variant,
            _idle: idle.map_err(|error| server.explain(error))?,
            server: Some(server),
        })
    }

    fn measure(&mut self, storage: &Storage, load: &Load, setup: &Setup) -> Result<Measured> {
        let times = setup.times();
        let Some(server) = &mut self.server else {
            let path = storage.path.as_ref();
            let path =
                path.ok_or_else(|| Error::Unsuitable("the host has no such disk".to_owned()))?;
            return raw::measure(path, Aio::Native, load, &setup.places.server_cpus, times);
        };
        let stream = server.connect(0)?;
        let pid = Some(server.pid());
        let measured = match self.variant.access {
            AccessPath::Lsi(options) => measure_lsi(stream, options, load, times, pid),
            AccessPath::VirtioScsi => measure_virtio_scsi(stream, load, times, pid),
            AccessPath::VirtioBlk | AccessPath::Host => measure(vec![stream], load, times, pid),
        };
        let name = self.variant.name.clone();
        measured.map_err(|error| Error::Of(name, Box::new(server.explain(error))))
    }
}

impl Contest {
    /// Measures, and makes a table for each backing.
    pub fn run(&self, setup: &Setup) -> Result<Vec<Table>> {
        let backings = setup.backing.iter();
        backings
            .map(|backing| self.run_on(backing, setup))
            .collect()
    }

    fn run_on(&self, backing: &Backing, setup: &Setup) -> Result<Table> {
        let mut loads = self.loads.clone();
        loads.retain(|load| !load.pattern.writes() || !backing.is_foreign());
        let is_null = *backing == Backing::Null;
        let (mut variants, mut missing) = (Vec::new(), Vec::new());
        for variant in &self.variants {
            match variant.patch.filter(|patch| setup.patched(patch).is_none()) {
                Some(patch) => missing.push((&variant.name, patch)),
                None if is_null && variant.access == AccessPath::Host => {}
                None => variants.push(variant),
            }
        }
        let title = format!("{}: {backing}", self.title);
        eprintln!("{title}: making the disk, starting servers ...");
        let storage = backing.storage(0, setup.places.room())?;
        let bytes = match &storage.path {
            Some(path) => bytes_of(path).map_err(Error::io("ask for a disk's size"))?,
            None => 1 << 30,
        };
        loads.iter_mut().for_each(|load| load.span_bytes = bytes);
        let writable = loads.iter().any(|load| load.pattern.writes());
        let running = variants
            .iter()
            .map(|variant| Running::start(variant, &storage, writable, setup));
        let mut running = running.collect::<Result<Vec<_>>>()?;
        let names: Vec<&str> = variants.iter().map(|variant| &*variant.name).collect();
        let place = |name: &str| names.iter().position(|other| *other == name);
        let pairs = self.ratios.iter();
        let pairs = pairs.filter_map(|(of, over)| Some((of, over, place(of)?, place(over)?)));
        let pairs: Vec<_> = pairs.collect();
        let unit = if self.in_megabytes { "MB/s" } else { "IOPS" };
        let mut columns = vec![format!("{unit}, random (CPU ns per request)")];
        columns.extend(names.iter().map(|name| (*name).to_owned()));
        columns.extend(pairs.iter().map(|(of, over, ..)| format!("{of} / {over}")));
        let mut table = Table::new(title.clone(), columns);
        let figure = |run: &Measured| {
            Some(if self.in_megabytes {
                run.mb_per_s()
            } else {
                run.iops()
            })
        };
        for load in &loads {
            let runs = in_turn(running.len(), setup.repetitions, |index| {
                eprintln!("{title}: {}: {} ...", name(load), names[index]);
                running[index].measure(&storage, load, setup)
            })?;
            let mut row = vec![name(load)];
            row.extend(runs.iter().map(|runs| {
                let median = |summary: Option<Summary>| {
                    summary.map_or_else(|| "-".to_owned(), |it| number(it.median))
                };
                let rate = median(Summary::of_runs(runs, figure));
                let cpu = median(Summary::of_runs(runs, Measured::server_cpu_ns));
                format!("{rate} ({cpu})")
            }));
            row.extend(pairs.iter().map(|&(.., of, over)| {
                let ratio = Summary::of_ratios(&runs[of], &runs[over], figure);
                ratio.map_or_else(String::new, |ratio| ratio.ratio_text())
            }));
            table.row(row);
        }
        table.note("medians; ratio: median (lowest-highest) of pairs of repetitions");
        table.note("CPU: a server that polls uses its processor whether there is work or not; the host's is the load's own");
        self.notes.iter().for_each(|note| table.note(*note));
        for (name, patch) in missing {
            table.note(format!(
                "{name}: not measured, since no blockplane with the patch {patch} was named; see `cargo xtask experiments`"
            ));
        }
        for one in running {
            let counted = counters(&one.server.map_or(Ok(String::new()), Server::stop)?);
            if !counted.is_empty() {
                table.note(format!("{}: {counted}", one.variant.name));
            }
        }
        Ok(table)
    }
}

fn bytes_of(path: &Path) -> std::io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

/// `4k read, depth 8, 2 queues`
fn name(load: &Load) -> String {
    let kind = if load.pattern.writes() {
        "write"
    } else {
        "read"
    };
    let plural = if load.queues == 1 { "" } else { "s" };
    let block = units::shown_bytes(load.block_bytes);
    format!(
        "{block} {kind}, depth {}, {} queue{plural}",
        load.depth, load.queues
    )
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
