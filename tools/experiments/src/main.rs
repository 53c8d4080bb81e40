//! `blockplane-experiments`: reproduces the published results of the field with blockplane's own mechanisms.
//! `docs/experiments.md` describes all of it.
//!
//! Each experiment is a list of servers and a list of loads ([`contest`]). It prints tables.

mod contest;
mod idle_queues;
mod lsi;
mod published;
mod scsi_commands;
mod scsi_load;
mod virtio_scsi;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::cli::print_tables;
use bench::load::{Load, Times, Waiting};
use bench::places::Places;
use bench::storage::Backing;
use bench::{Error, Result, units};
use clap::{Parser, ValueEnum};
use commands::signals;

use crate::contest::Contest;

const PROGRAM: &str = "blockplane-experiments";

/// Measures blockplane's mechanisms, each with and without
///
/// Prints a table or more for each experiment. `cargo xtask experiments` builds the servers without a mechanism as well, and runs
/// this program with them. It needs two processors that have nothing else to do.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, args_override_self = true, term_width = commands::HELP_COLUMNS)]
struct Setup {
    /// What to measure [default: all]
    #[arg(value_name = "NAME", value_enum)]
    names: Vec<Experiment>,
    /// How often each figure is measured, all servers in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// How long each measurement is
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    time: Duration,
    /// Load before it that does not count
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = commands::time::parse_duration)]
    warm_up: Duration,
    /// What is behind disks: null, file, tmpfs, or a file or block device, which is only read
    #[arg(
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "file"
    )]
    backing: Vec<Backing>,
    /// A blockplane that was built with the patch NAME of experiments/patches
    #[arg(long, value_name = "NAME=PATH", value_parser = named_path)]
    patched: Vec<(String, PathBuf)>,
    /// Where things are.
    #[command(flatten)]
    places: Places,
}

fn named_path(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("NAME=PATH is expected")?;
    Ok((name.to_owned(), path.into()))
}

impl Setup {
    fn times(&self) -> Times {
        Times {
            warm_up: self.warm_up,
            time: self.time,
            repetitions: self.repetitions,
        }
    }

    /// Loads of each size at each depth on so many queues, at random places; so many percent are reads.
    fn loads(
        &self,
        read_percent: u8,
        blocks_kib: &[u32],
        queues: &[u16],
        depths: &[u16],
        waiting: Waiting,
    ) -> Vec<Load> {
        let mut loads = Vec::new();
        for &queues in queues {
            for &kib in blocks_kib {
                loads.extend(depths.iter().map(|&depth| Load {
                    block_bytes: kib << 10,
                    queues,
                    cpus: self.places.client_cpus.clone(),
                    ..Load::random(read_percent, depth, waiting)
                }));
            }
        }
        loads
    }

    /// The blockplane that was built with this patch, if one was named.
    fn patched(&self, patch: &str) -> Option<PathBuf> {
        let found = self.patched.iter().find(|(name, _)| name == patch);
        found.map(|(_, path)| path.clone())
    }
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// A limit on the requests in one submission
    BatchLimit,
    /// Completions read in user space, or by system call
    Completions,
    /// The guest is signalled before the next submission, or after
    Notify,
    /// A busy queue beside many idle ones
    Handlers,
    /// Queued and unqueued writes of an LSI 53C895A, and virtio
    Scsi,
}

impl Experiment {
    fn contest(self, setup: &Setup) -> Contest {
        match self {
            Experiment::BatchLimit => published::batch_limit(setup),
            Experiment::Completions => published::completions(setup),
            Experiment::Notify => published::notify(setup),
            Experiment::Handlers => published::handlers(setup),
            Experiment::Scsi => published::scsi(setup),
        }
    }
}

fn main() -> ExitCode {
    commands::main(PROGRAM, std::env::args_os(), |setup: Setup| {
        signals::record_termination_signals();
        let names = match &setup.names[..] {
            [] => Experiment::value_variants(),
            names => names,
        };
        setup.places.check_cpus()?;
        for name in names {
            // Each as soon as it is there: all of them take half an hour.
            let mut out = std::io::stdout().lock();
            print_tables(&mut out, &name.contest(&setup).run(&setup)?)?;
            writeln!(out).map_err(Error::io("print"))?;
        }
        Result::<()>::Ok(())
    })
}
