//! The command line: `blockplane-bench …`.

mod help;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use commands::signals;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::experiments::{self, batch_limit, completion_ring, many_queues, monitors, notify, scsi};
use crate::svg::Figure;
use crate::table::Table;
use crate::{backup, compare, handlers, idle, nbd, neighbours, run, targets, throttle};

/// What the program is called.
pub const PROGRAM: &str = "blockplane-bench";

/// `blockplane-bench …`
#[derive(Debug, Parser)]
#[command(
    name = "blockplane-bench",
    bin_name = "blockplane-bench",
    version,
    term_width = commands::HELP_COLUMNS,
    about = "Measures blockplane, or any other vhost-user-blk server",
    long_about = help::LONG_ABOUT,
    after_long_help = help::EXAMPLES
)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON, for scripts
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to measure.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Does a handler cost more when many are registered? The loop alone, and a server
    #[command(long_about = help::HANDLERS, after_long_help = help::HANDLERS_EXAMPLES)]
    Handlers(Handlers),
    /// At most so many requests in one submission: which limit is best?
    #[command(long_about = help::BATCH_LIMIT, after_long_help = help::BATCH_LIMIT_EXAMPLES)]
    BatchLimit(batch_limit::Options),
    /// Signal the guest before submitting, or after?
    #[command(long_about = help::NOTIFY, after_long_help = help::NOTIFY_EXAMPLES)]
    Notify(notify::Options),
    /// Completions read in user space, or by system call?
    #[command(long_about = help::COMPLETION_RING, after_long_help = help::COMPLETION_RING_EXAMPLES)]
    CompletionRing(completion_ring::Options),
    /// What do many clients of a monitor cost the guest?
    #[command(long_about = help::MONITORS, after_long_help = help::MONITORS_EXAMPLES)]
    Monitors(monitors::Options),
    /// An emulated SCSI adapter beside virtio: how much of the disk's speed is left?
    #[command(long_about = help::SCSI, after_long_help = help::SCSI_EXAMPLES)]
    Scsi(scsi::Options),
    /// A server with many disks and nothing to do: wake-ups, memory per queue
    #[command(long_about = help::IDLE, after_long_help = help::IDLE_EXAMPLES)]
    Idle(idle::Options),
    /// A load on any vhost-user-blk server: IOPS, latency, the server's CPU time per request
    #[command(long_about = help::RUN, after_long_help = help::RUN_EXAMPLES)]
    Run(run::Options),
    /// The same load on blockplane, on the host itself, on qemu-storage-daemon, on any server
    #[command(long_about = help::COMPARE, after_long_help = help::COMPARE_EXAMPLES)]
    Compare(compare::Options),
    /// What blockplane wants to reach against the host and qemu-storage-daemon, and what it reaches
    #[command(long_about = help::TARGETS, after_long_help = help::TARGETS_EXAMPLES)]
    Targets(targets::Options),
    /// Limits of throttle groups: what passes, how evenly, and what members get
    #[command(long_about = help::THROTTLE, after_long_help = help::THROTTLE_EXAMPLES)]
    Throttle(throttle::Options),
    /// A disk with one read in flight beside a greedy one
    #[command(long_about = help::NEIGHBOURS, after_long_help = help::NEIGHBOURS_EXAMPLES)]
    Neighbours(neighbours::Options),
    /// A guest's load without a backup of its disk, and with one
    #[command(long_about = help::BACKUP, after_long_help = help::BACKUP_EXAMPLES)]
    Backup(backup::Options),
    /// The same load on NBD servers: blockplane's, QEMU's, nbdkit
    #[command(long_about = help::NBD, after_long_help = help::NBD_EXAMPLES)]
    Nbd(nbd::Options),
    /// Its manual pages or shell completions, for packages
    #[command(after_long_help = help::GENERATE_EXAMPLES)]
    Generate(Generate),
}

/// `blockplane-bench generate`
#[derive(Clone, Debug, clap::Args)]
pub struct Generate {
    /// What to write
    #[arg(value_enum)]
    pub what: Generated,
    /// Into this folder, which is created
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// What can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Generated {
    /// blockplane-bench.1, and a page for each command
    Man,
    /// For bash, zsh and fish
    Completions,
}

/// `blockplane-bench handlers`
#[derive(Clone, Debug, clap::Args)]
pub struct Handlers {
    /// Only one part of it
    #[arg(long, value_enum)]
    pub only: Option<Part>,
    /// The loop.
    #[command(flatten)]
    pub of_loop: handlers::Options,
    /// The server.
    #[command(flatten)]
    pub of_server: many_queues::Options,
}

/// Parts of `blockplane-bench handlers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The event loop alone
    Loop,
    /// One busy queue of a server beside thousands of idle ones
    Server,
}

/// What a measurement has to say.
struct Report {
    tables: Vec<Table>,
    json: Value,
    /// For `--svg`.
    figure: Option<Figure>,
}

/// The grammar, for manual pages and completions.
#[must_use]
pub fn grammar() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// All of the program: measures what `words`, those after its name, ask for, and prints.
#[must_use]
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words = std::iter::once(PROGRAM.into()).chain(words);
    commands::main(PROGRAM, words, |cli: Cli| {
        let done = run(&cli, &mut std::io::stdout().lock());
        match done {
            // Whatever else it led to.
            Err(_) if signals::termination_requested() => Err(Error::Interrupted),
            done => done,
        }
    })
}

/// Measures and prints to `out`.
///
/// # Errors
/// What the measurement says, or [`Error::Io`] when `out` cannot be written.
pub fn run(cli: &Cli, out: &mut impl Write) -> Result<()> {
    signals::record_termination_signals();
    let plot = cli.command.svg().map(Plot::at).transpose()?;
    let Some(report) = measure(&cli.command)? else {
        return Ok(());
    };
    if let (Some(plot), Some(figure)) = (plot, &report.figure) {
        plot.write(figure)?;
    }
    let Report { tables, json, .. } = report;
    let written = if cli.json {
        writeln!(out, "{json:#}")
    } else {
        let tables: Vec<String> = tables.iter().map(Table::to_string).collect();
        write!(out, "{}", tables.join("\n"))
    };
    match written.and_then(|()| out.flush()) {
        // The reader of a pipe, such as `head`, may end first.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Error::io("print the result")),
    }
}

fn generate(options: &Generate) -> Result<()> {
    let Generate { what, folder } = options;
    let written = match what {
        Generated::Man => manual::write_program_pages(folder, &grammar()),
        Generated::Completions => manual::write_program_completions(folder, &grammar()),
    };
    written.map_err(Error::io("generate"))
}

/// A file for a plot, which can be written: that is known before minutes of measuring.
struct Plot<'p> {
    path: &'p Path,
    file: File,
}

impl<'p> Plot<'p> {
    fn at(path: &'p Path) -> Result<Self> {
        // What is there stays until there is something better.
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let file = file.map_err(Error::io(format!("open {} for the plot", path.display())))?;
        Ok(Plot { path, file })
    }

    fn write(mut self, figure: &Figure) -> Result<()> {
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.write_all(figure.svg()?.as_bytes()));
        written.map_err(Error::io(format!(
            "write the plot to {}",
            self.path.display()
        )))
    }
}

impl Command {
    /// Where a plot is wanted.
    fn svg(&self) -> Option<&Path> {
        match self {
            Command::Handlers(Handlers {
                only: Some(Part::Loop),
                ..
            }) => None,
            Command::Handlers(options) => options.of_server.setup.svg.as_deref(),
            Command::BatchLimit(options) => options.setup.svg.as_deref(),
            Command::Notify(options) => options.setup.svg.as_deref(),
            Command::CompletionRing(options) => options.setup.svg.as_deref(),
            Command::Monitors(options) => options.setup.svg.as_deref(),
            Command::Scsi(options) => options.setup.svg.as_deref(),
            Command::Compare(options) => options.svg.as_deref(),
            Command::Idle(_)
            | Command::Run(_)
            | Command::Targets(_)
            | Command::Throttle(_)
            | Command::Neighbours(_)
            | Command::Backup(_)
            | Command::Nbd(_)
            | Command::Generate(_) => None,
        }
    }
}

/// `None`: it was no measurement.
fn measure(command: &Command) -> Result<Option<Report>> {
    let plain = |table, json| Report {
        tables: vec![table],
        json,
        figure: None,
    };
    Ok(Some(match command {
        Command::Generate(options) => {
            generate(options)?;
            return Ok(None);
        }
        Command::Handlers(options) => measure_handlers(options)?,
        Command::BatchLimit(options) => batch_limit::run(options)?.into(),
        Command::Notify(options) => notify::run(options)?.into(),
        Command::CompletionRing(options) => completion_ring::run(options)?.into(),
        Command::Monitors(options) => monitors::run(options)?.into(),
        Command::Scsi(options) => scsi::run(options)?.into(),
        Command::Idle(options) => {
            let report = idle::run(options)?;
            plain(report.table(), report.json())
        }
        Command::Run(options) => {
            let report = run::run(options)?;
            plain(report.table(), report.json())
        }
        Command::Targets(options) => {
            let report = targets::run(options)?;
            plain(report.table(), report.json())
        }
        Command::Throttle(options) => {
            let report = throttle::run(options)?;
            Report {
                tables: report.tables,
                json: report.json,
                figure: None,
            }
        }
        Command::Neighbours(options) => {
            let report = neighbours::run(options)?;
            plain(report.table(), report.json())
        }
        Command::Backup(options) => {
            let report = backup::run(options)?;
            Report {
                tables: report.tables(),
                json: report.json(),
                figure: None,
            }
        }
        Command::Nbd(options) => {
            let report = nbd::run(options)?;
            plain(report.table(), report.json())
        }
        Command::Compare(options) => {
            let report = compare::run(options)?;
            Report {
                tables: report.tables(),
                json: report.json(),
                figure: Some(report.figure()),
            }
        }
    }))
}

impl From<experiments::Report> for Report {
    fn from(report: experiments::Report) -> Report {
        Report {
            tables: report.tables,
            json: report.json,
            figure: Some(report.figure),
        }
    }
}

/// Both parts, unless only one was asked for; the plot is the server's.
fn measure_handlers(options: &Handlers) -> Result<Report> {
    let mut all = Report {
        tables: Vec::new(),
        json: Value::Object(serde_json::Map::new()),
        figure: None,
    };
    let mut join = |part: Value| {
        if let (Value::Object(all), Value::Object(part)) = (&mut all.json, part) {
            all.extend(part);
        }
    };
    if options.only != Some(Part::Server) {
        let report = handlers::run(&options.of_loop)?;
        all.tables.push(report.table());
        join(report.json());
    }
    if options.only != Some(Part::Loop) {
        let report = many_queues::run(&options.of_server)?;
        all.tables.extend(report.tables);
        all.figure = Some(report.figure);
        join(report.json);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
