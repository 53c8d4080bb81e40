//! Servers that differ in one mechanism or setting, under the same loads in turn.
//!
//! All of them run all the time; one that is not loaded sleeps. Within a load every repetition
//! visits each server once, and the next visits them in the other direction: drift favours
//! none.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::counters::Counters;
use super::drive::{Load, Sample, drive};
use super::setup::Setup;
use crate::cpus::Pinned;
use crate::error::Result;
use crate::program::blockplane;
use crate::progress::Progress;
use crate::server::{Disk, FrontEnd, Server};
use crate::stats::Summary;
use crate::storage::Storage;
use crate::table::Table;
use crate::turns;

/// One of the servers.
pub(crate) struct Variant {
    /// For tables.
    pub name: String,
    /// The program; `None`: the blockplane to measure.
    pub program: Option<PathBuf>,
    /// Options of the iothread.
    pub iothread: String,
    /// The first is loaded.
    pub disks: Vec<Disk>,
}

/// One load on one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub iops: Summary,
    pub cpu_ns: Summary,
    pub sleeps: Summary,
}

/// All figures.
pub(crate) struct Outcome {
    pub loads: Vec<Load>,
    /// Names.
    pub variants: Vec<String>,
    /// By load, then by variant.
    pub cells: Vec<Vec<Cell>>,
    /// By variant.
    pub counters: Vec<Counters>,
}

/// A server that differs from others in its program or in options of the iothread.
pub(crate) struct Position {
    /// For tables.
    pub name: String,
    /// The program; `None`: the blockplane to measure.
    pub program: Option<PathBuf>,
    /// Options of the iothread.
    pub iothread: String,
}

/// Measures servers that have the same disk, with as many queues as the loads need.
pub(crate) fn positions(
    title: &str,
    setup: &Setup,
    storage: &Storage,
    positions: impl IntoIterator<Item = Position>,
    loads: &[Load],
) -> Result<Outcome> {
    let disk = Disk {
        backing: storage.backing.clone(),
        num_queues: loads
            .iter()
            .map(|load| load.queues)
            .max()
            .unwrap_or(1)
            .into(),
        writable: loads.iter().any(|load| load.write),
        front_end: FrontEnd::Blk,
        throttle_groups: Vec::new(),
    };
    let variant = |position: Position| Variant {
        name: position.name,
        program: position.program,
        iothread: position.iothread,
        disks: vec![disk.clone()],
    };
    let variants: Vec<Variant> = positions.into_iter().map(variant).collect();
    run(title, setup, &variants, loads, |_, _| Ok(()))
}

/// Measures. `attach` is called once for each server before its first load; what it returns lives as
/// long as the server.
pub(crate) fn run<T>(
    title: &str,
    setup: &Setup,
    variants: &[Variant],
    loads: &[Load],
    mut attach: impl FnMut(&mut Server, &Variant) -> Result<T>,
) -> Result<Outcome> {
    let unpatched = blockplane(setup.server.as_deref())?;
    let steps = loads.len() * setup.repetitions as usize * variants.len();
    let progress = Progress::start(title, steps);
    let mut servers = Vec::new();
    let mut attached = Vec::new();
    for variant in variants {
        progress.now(format!("starting {}", variant.name));
        // What we start runs where we do at that moment.
        let pinned = Pinned::to(&[setup.server_cpu])?;
        let program = variant.program.as_ref().unwrap_or(&unpatched);
        let iothread = setup.iothread_with(&variant.iothread);
        let mut server = Server::start_with(program, &iothread, &variant.disks)?;
        drop(pinned);
        let with = attach(&mut server, variant).map_err(|error| server.explain(error))?;
        servers.push(server);
        attached.push(with);
    }
    let pinned = Pinned::to(&[setup.client_cpu])?;
    let mut cells = Vec::new();
    for load in loads {
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); variants.len()];
        for repetition in 0..setup.repetitions {
            for variant in turns::of_repetition(repetition, variants.len()) {
                progress.now(format!("{load}: {}", variants[variant].name));
                samples[variant].push(drive(&mut servers[variant], 0, load, setup)?);
                progress.step();
            }
        }
        cells.push(samples.iter().filter_map(|samples| cell(samples)).collect());
    }
    drop(pinned);
    // Front-ends go first, as for any other end.
    drop(attached);
    let logs = servers.into_iter().map(Server::stop_and_tell);
    let counters = logs.map(|log| Ok(Counters::of_log(&log?)));
    Ok(Outcome {
        loads: loads.to_vec(),
        variants: variants
            .iter()
            .map(|variant| variant.name.clone())
            .collect(),
        cells,
        counters: counters.collect::<Result<_>>()?,
    })
}

fn cell(samples: &[Sample]) -> Option<Cell> {
    let of =
        |value: fn(&Sample) -> f64| Summary::of(&samples.iter().map(value).collect::<Vec<_>>());
    Some(Cell {
        iops: of(|sample| sample.iops)?,
        cpu_ns: of(|sample| sample.cpu_ns)?,
        sleeps: of(|sample| sample.sleeps)?,
    })
}

impl Outcome {
    /// For scripts.
    pub fn json(&self) -> Value {
        let cell = |(variant, cell): (&String, &Cell)| {
            json!({
                "variant": variant,
                "iops": cell.iops.json(),
                "cpu_ns_per_request": cell.cpu_ns.json(),
                "sleeps_per_request": cell.sleeps.json(),
            })
        };
        let row = |(load, cells): (&Load, &Vec<Cell>)| {
            json!({
                "block_bytes": load.block_bytes,
                "write": load.write,
                "depth": load.depth,
                "queues": load.queues,
                "figures": self.variants.iter().zip(cells).map(cell).collect::<Vec<_>>(),
            })
        };
        let server = |(variant, counters): (&String, &Counters)| json!({ "variant": variant, "counters": counters.json() });
        json!({
            "loads": self.loads.iter().zip(&self.cells).map(row).collect::<Vec<_>>(),
            "servers": self.variants.iter().zip(&self.counters).map(server).collect::<Vec<_>>(),
        })
    }

    /// What a request cost the server under each load: processor time, and how often one of its
    /// threads went to sleep.
    pub fn costs(&self, title: &str) -> Table {
        let mut columns = vec!["CPU ns (sleeps) per request".to_owned()];
        columns.extend(self.variants.iter().cloned());
        let mut table = Table::new(title, &columns);
        for (load, cells) in self.loads.iter().zip(&self.cells) {
            let mut row = vec![load.to_string()];
            row.extend(cells.iter().map(|cell| {
                let cpu = cell.cpu_ns.mean_text(1.0);
                format!("{cpu} ({:.3})", cell.sleeps.mean)
            }));
            table.row(row);
        }
        table.note("a server that polls uses its processor whether there is work or not");
        table
    }

    /// `mean ± error %` of a cell, in units of `unit`; `-` where nothing was measured.
    pub fn iops_text(&self, load: usize, variant: usize, unit: f64) -> String {
        let cell = self.cells.get(load).and_then(|cells| cells.get(variant));
        cell.map_or_else(|| "-".to_owned(), |cell| cell.iops.mean_text(unit))
    }

    /// The mean of `variant` over that of `base`.
    pub fn ratio(&self, load: usize, variant: usize, base: usize) -> Option<f64> {
        let cells = self.cells.get(load)?;
        let base = cells.get(base)?.iops.mean;
        (base > 0.0).then(|| cells.get(variant).map(|cell| cell.iops.mean / base))?
    }
}
