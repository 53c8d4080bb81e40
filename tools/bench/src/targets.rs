//! `blockplane-bench targets`: performance targets of blockplane, and the measured results.
//!
//! [`wanted`] is the whole of it, as a table. Ratios are taken in one run, from pairs of repetitions.

mod definitions;
mod report;

use std::time::Duration;

use crate::comparison_options::ComparisonOptions;
use crate::contenders::{Contenders, ServerSetup, Times};
use crate::error::Result;
use crate::idle;
use crate::load::Waiting;
use crate::program::blockplane;
use crate::progress::Progress;
use crate::units;
pub use definitions::Group;
use definitions::{TARGETS, Target};
pub use report::{Outcome, Report};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Only these groups of rows [default: all]
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',', value_enum)]
    pub only: Vec<Group>,
    /// How long each measurement is
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::time)]
    pub time: Duration,
    /// Load before it that does not count
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = commands::time::parse_duration)]
    pub warm_up: Duration,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Idle disks beside the one that is loaded, and of the server that has nothing to do
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub idle_disks: u16,
    /// Queues of each of them
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u8).range(1..))]
    pub idle_queues: u8,
    /// Where things are.
    #[command(flatten)]
    pub place: ComparisonOptions,
}

/// Measures.
///
/// # Errors
/// [`Error::Unsuitable`](crate::error::Error::Unsuitable) for processors that there are not; when a request
/// or a server fails.
pub fn run(options: &Options) -> Result<Report> {
    options.place.check_cpus()?;
    let wanted = |group: Group| options.only.is_empty() || options.only.contains(&group);
    let mut outcomes = Vec::new();
    for group in [
        Group::Null,
        Group::Tmpfs,
        Group::Disk,
        Group::IdleNeighbours,
        Group::Mixed,
        Group::MixedTmpfs,
    ] {
        if wanted(group) {
            outcomes.extend(measure(group, options)?);
        }
    }
    let idle = if wanted(Group::Idle) {
        let nothing = idle::Options {
            disks: options.idle_disks,
            queues: u16::from(options.idle_queues),
            queue_size: 128,
            watch_ms: u64::try_from(options.time.as_millis()).unwrap_or(u64::MAX),
            settle_ms: u64::try_from(options.warm_up.as_millis()).unwrap_or(u64::MAX),
            server: options.place.server.clone(),
            folder: options.place.folder.clone(),
        };
        idle::run(&nothing)?.servers
    } else {
        Vec::new()
    };
    Ok(Report { outcomes, idle })
}

fn measure(group: Group, options: &Options) -> Result<Vec<Outcome>> {
    let targets: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| target.group == group)
        .collect();
    let mut loads: Vec<(Waiting, u16)> = Vec::new();
    for target in &targets {
        let load = (target.waiting, target.depth);
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    let place = &options.place;
    let peer = place.peer();
    let contenders = group.contenders(options, peer.is_some());
    let steps = loads.len() * contenders.len() * options.repetitions as usize;
    let progress = Progress::start(&format!("targets, {}", group.name()), steps);
    progress.now("starting");
    let mixed = group.is_mixed();
    let storage = group.storage().storage(place.room(), None)?;
    let setup = ServerSetup {
        ours: blockplane(place.server.as_deref())?,
        peer,
        backings: vec![storage.backing.clone()],
        queues: if mixed { 4 } else { 1 },
        writable: mixed,
        iothreads: if mixed { 2 } else { 1 },
        iothread_options: String::new(),
        server_options: Vec::new(),
        server_cpus: if mixed {
            Vec::new()
        } else {
            place.server_cpus.clone()
        },
    };
    let times = Times {
        warm_up: options.warm_up,
        time: options.time,
        repetitions: options.repetitions,
    };
    let mut running = Contenders::open(setup, &contenders)?;
    let mut rows = Vec::new();
    for &(waiting, depth) in &loads {
        let load = group.load(waiting, depth, &place.client_cpus);
        rows.push(((waiting, depth), running.row(&load, times, &progress)?));
    }
    running.close()?;
    let outcomes = targets.into_iter().filter_map(|target| {
        let (_, row) = rows
            .iter()
            .find(|(load, _)| *load == (target.waiting, target.depth))?;
        Some(target.outcome(row, &contenders))
    });
    Ok(outcomes.collect())
}
