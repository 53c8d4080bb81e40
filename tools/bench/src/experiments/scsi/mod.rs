//! `blockplane-bench scsi`: an emulated SCSI adapter beside virtio.
//!
//! The same load through an LSI53C895A, a virtio SCSI controller and a virtio disk, and on the host itself, in turn. What made
//! old emulations slow is the driver's to switch on: a write that keeps the SCSI bus until it is done, and requests in small
//! pieces, one after the other.

mod report;

use std::fmt;

use report::Outcome;

use super::{Report, Setup};
use crate::client::lsi::Bus;
use crate::client::{Form, Placement};
use crate::cpus::{self, Pinned};
use crate::error::Result;
use crate::load::{self, Detail, LsiRequestOptions, Measured, Order, Pattern};
use crate::program::blockplane;
use crate::progress::Progress;
use crate::server::{Disk, FrontEnd, Server, Threads};
use crate::storage::{Backing, Storage};
use crate::turns;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Bytes of a request, in KiB
    #[arg(
        long,
        value_name = "KIB,…",
        value_delimiter = ',',
        default_value = "16,64",
        value_parser = clap::value_parser!(u32).range(4..=1024)
    )]
    pub block_kib: Vec<u32>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub depth: u16,
    /// Requests in flight of the last row, reads of 4 KiB
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub small_depth: u16,
    /// Bytes of a piece, in KiB, where requests are cut; it divides every size
    #[arg(long, value_name = "KIB", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub piece_kib: u32,
    /// Where and how long.
    #[command(flatten)]
    pub setup: Setup,
}

/// The device over which requests reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessPath {
    Lsi(LsiRequestOptions),
    VirtioScsi,
    VirtioBlk,
    Host,
}

impl AccessPath {
    fn front_end(self) -> Option<FrontEnd> {
        match self {
            AccessPath::Lsi(_) => Some(FrontEnd::Lsi),
            AccessPath::VirtioScsi => Some(FrontEnd::VirtioScsi),
            AccessPath::VirtioBlk => Some(FrontEnd::Blk),
            AccessPath::Host => None,
        }
    }

    /// Those that a request of one piece goes as well.
    fn is_for_small(self) -> bool {
        !matches!(self, AccessPath::Lsi(LsiRequestOptions { piece_bytes, .. }) if piece_bytes != 0)
    }
}

impl fmt::Display for AccessPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessPath::Lsi(LsiRequestOptions {
                bus: Bus::HeldByWrites,
                ..
            }) => f.write_str("LSI, as of old"),
            AccessPath::Lsi(LsiRequestOptions { piece_bytes: 0, .. }) => f.write_str("LSI"),
            AccessPath::Lsi(_) => f.write_str("LSI, pieces"),
            AccessPath::VirtioScsi => f.write_str("virtio-scsi"),
            AccessPath::VirtioBlk => f.write_str("virtio-blk"),
            AccessPath::Host => f.write_str("host"),
        }
    }
}

/// Measures.
///
/// # Errors
/// When a server or the disk fails; [`crate::error::Error::Unsuitable`] when sizes and pieces do not go together.
pub fn run(options: &Options) -> Result<Report> {
    let setup = &options.setup;
    cpus::check(&[setup.server_cpu, setup.client_cpu])?;
    let piece_bytes = options.piece_kib << 10;
    options.check(piece_bytes)?;
    let storage = setup.storage()?;
    let old = LsiRequestOptions {
        bus: Bus::HeldByWrites,
        piece_bytes,
    };
    let pieces = LsiRequestOptions {
        bus: Bus::Shared,
        ..old
    };
    let whole = LsiRequestOptions {
        piece_bytes: 0,
        ..pieces
    };
    let mut ways = vec![
        AccessPath::Lsi(old),
        AccessPath::Lsi(pieces),
        AccessPath::Lsi(whole),
    ];
    ways.extend([AccessPath::VirtioScsi, AccessPath::VirtioBlk]);
    if storage.backing != Backing::Null {
        ways.push(AccessPath::Host);
    }
    let loads = options.loads();
    let measured = measure(setup, &storage, &ways, &loads)?;
    let outcome = Outcome {
        ways,
        loads,
        measured,
    };
    Ok(outcome.report(options, &setup.conditions(&storage)))
}

impl Options {
    fn check(&self, piece_bytes: u32) -> Result<()> {
        let odd = |kib: &&u32| !(*kib << 10).is_multiple_of(piece_bytes);
        match self.block_kib.iter().find(odd) {
            None => Ok(()),
            Some(kib) => Err(crate::error::Error::Unsuitable(format!(
                "--block-kib {kib} is not a multiple of --piece-kib {}",
                self.piece_kib
            ))),
        }
    }

    /// Each size, written and read; and small reads.
    fn loads(&self) -> Vec<load::Load> {
        // A given device is not written.
        let kinds: &[u8] = if self.setup.device.is_some() {
            &[100]
        } else {
            &[0, 100]
        };
        let load = |block_bytes, read_percent, depth| load::Load {
            pattern: Pattern {
                order: Order::Random,
                read_percent,
            },
            block_bytes,
            depth,
            queues: 1,
            waiting: self.setup.client,
            threads: 1,
            cpus: vec![self.setup.client_cpu],
            detail: Detail::default(),
            span_bytes: 0,
            gives_way: false,
            recorded: false,
            placement: Placement::Apart,
            form: Form::Plain,
        };
        let mut loads = Vec::new();
        for kib in &self.block_kib {
            for kind in kinds {
                loads.push(load(kib << 10, *kind, self.depth));
            }
        }
        loads.push(load(SMALL_BYTES, 100, self.small_depth));
        loads
    }
}

/// Of a request of the last row.
const SMALL_BYTES: u32 = 4096;

/// By load, by way, by repetition; nothing where a way differs in nothing from another.
type Repetitions = Vec<Vec<Vec<Measured>>>;

fn measure(
    setup: &Setup,
    storage: &Storage,
    ways: &[AccessPath],
    loads: &[load::Load],
) -> Result<Repetitions> {
    let program = blockplane(setup.server.as_deref())?;
    let goes =
        |way: &AccessPath, load: &load::Load| load.block_bytes > SMALL_BYTES || way.is_for_small();
    let per_repetition: usize = loads
        .iter()
        .map(|load| ways.iter().filter(|way| goes(way, load)).count())
        .sum();
    let progress = Progress::start("scsi", per_repetition * setup.repetitions as usize);
    // A server for each front-end: one that is not loaded sleeps.
    let mut servers: Vec<(FrontEnd, Server)> = Vec::new();
    for front_end in [FrontEnd::Lsi, FrontEnd::VirtioScsi, FrontEnd::Blk] {
        progress.now("starting servers");
        let disk = Disk {
            backing: storage.backing.clone(),
            num_queues: 1,
            writable: loads.iter().any(|load| load.pattern.writes()),
            front_end,
            throttle_groups: Vec::new(),
        };
        // What we start runs where we do at that moment.
        let _pinned = Pinned::to(&[setup.server_cpu])?;
        let threads = Threads {
            count: 1,
            options: &setup.iothread_with(""),
        };
        servers.push((
            front_end,
            Server::start_as(&program, threads, &[], &[disk])?,
        ));
    }
    let mut all = Vec::new();
    for load in loads {
        let mut measured = vec![Vec::new(); ways.len()];
        for repetition in 0..setup.repetitions {
            for index in turns::of_repetition(repetition, ways.len())
                .into_iter()
                .filter(|index| goes(&ways[*index], load))
            {
                let way = ways[index];
                progress.now(format!("{}: {way}", report::name(load)));
                let server = servers
                    .iter_mut()
                    .find(|(front_end, _)| Some(*front_end) == way.front_end());
                let one = match server {
                    Some((_, server)) => through(server, way, load, setup)?,
                    None => on_host(storage, load, setup)?,
                };
                measured[index].push(one);
                progress.step();
            }
        }
        all.push(measured);
    }
    for (_, server) in servers {
        server.stop()?;
    }
    Ok(all)
}

fn through(
    server: &mut Server,
    way: AccessPath,
    load: &load::Load,
    setup: &Setup,
) -> Result<Measured> {
    let stream = server.connect(0)?;
    let (warm_up, time, pid) = (setup.warm_up(), setup.run(), Some(server.pid()));
    let measured = match way {
        AccessPath::Lsi(manner) => load::measure_lsi(stream, manner, load, warm_up, time, pid),
        AccessPath::VirtioScsi => load::measure_virtio_scsi(stream, load, warm_up, time, pid),
        AccessPath::VirtioBlk | AccessPath::Host => load::measure(stream, load, warm_up, time, pid),
    };
    measured.map_err(|error| server.explain(error).of(&way.to_string()))
}

fn on_host(storage: &Storage, load: &load::Load, setup: &Setup) -> Result<Measured> {
    let (path, aio) = match &storage.backing {
        Backing::File(path, aio) | Backing::Device(path, aio) => (path, aio.unwrap_or(setup.aio)),
        Backing::Null | Backing::Rbd(_) | Backing::Nbd(_) => {
            unreachable!("the host has no null disk, and experiments have none behind a network")
        }
    };
    load::raw::measure(
        path,
        aio,
        load,
        &[setup.server_cpu],
        setup.warm_up(),
        setup.run(),
    )
}
