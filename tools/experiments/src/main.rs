//! `blockplane-experiments`: reproduces the published results of the field with blockplane's own mechanisms, and measures what
//! it leaves to guests beside a greedy disk and a backup, and as an NBD server. `docs/experiments.md` describes all of it.
//!
//! Each experiment is a list of servers and a list of loads ([`contest`]), or a module of its own. It prints tables.

mod background_load;
mod backup;
mod contest;
mod event_loop;
mod idle_queues;
mod limits;
mod lsi;
mod monitor;
mod nbd;
mod neighbours;
mod published;
mod scsi_commands;
mod scsi_load;
mod setup;
mod virtio_scsi;

use std::io::Write;
use std::process::ExitCode;

use bench::cli::print_tables;
use bench::table::Table;
use bench::{Error, Result};
use clap::{Parser, ValueEnum};
use commands::signals;

use crate::setup::Setup;

const PROGRAM: &str = "blockplane-experiments";

/// Measures blockplane's mechanisms, each with and without, and what it leaves to guests
///
/// Prints a table or more for each experiment. `cargo xtask experiments` builds the servers without a mechanism as well, and runs
/// this program with them. It needs two processors that have nothing else to do.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, args_override_self = true, term_width = commands::HELP_COLUMNS)]
struct Cli {
    /// What to measure [default: the published results, which are all up to scsi]
    #[arg(value_name = "NAME", value_enum)]
    names: Vec<Experiment>,
    #[command(flatten)]
    setup: Setup,
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
    /// The cost of the event loop while many handlers are registered
    Handlers,
    /// Queued and unqueued writes of an LSI 53C895A, and virtio
    Scsi,
    /// A disk with one read in flight beside a greedy one
    Neighbours,
    /// A guest's load without a backup of its disk, and with one
    Backup,
    /// NBD servers under a load of fio's
    Nbd,
}

impl Experiment {
    const PUBLISHED: [Experiment; 5] = [
        Experiment::BatchLimit,
        Experiment::Completions,
        Experiment::Notify,
        Experiment::Handlers,
        Experiment::Scsi,
    ];

    fn run(self, setup: &Setup) -> Result<Vec<Table>> {
        match self {
            Experiment::BatchLimit => published::batch_limit(setup),
            Experiment::Completions => published::completions(setup),
            Experiment::Notify => published::notify(setup),
            Experiment::Handlers => published::handlers(setup),
            Experiment::Scsi => published::scsi(setup),
            Experiment::Neighbours => neighbours::run(setup),
            Experiment::Backup => backup::run(setup),
            Experiment::Nbd => nbd::run(setup),
        }
    }
}

fn main() -> ExitCode {
    commands::main(PROGRAM, std::env::args_os(), |cli: Cli| {
        signals::record_termination_signals();
        let names = match &cli.names[..] {
            [] => &Experiment::PUBLISHED[..],
            names => names,
        };
        cli.setup.place.check_cpus()?;
        for name in names {
            // Each as soon as it is there: all of them take half an hour.
            let mut out = std::io::stdout().lock();
            print_tables(&mut out, &name.run(&cli.setup)?)?;
            writeln!(out).map_err(Error::io("print"))?;
        }
        Ok::<(), Error>(())
    })
}
