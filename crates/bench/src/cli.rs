//! The command line. `blockplane bench` is to be this [`Command`] under another name.

use std::io::Write;

use clap::{Parser, Subcommand};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::table::Table;
use crate::{handlers, idle, requests};

/// `bench …`
#[derive(Debug, Parser)]
#[command(name = "bench", about = "Measures blockplane", long_about = LONG_ABOUT)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON, for scripts
    #[arg(long, global = true)]
    pub json: bool,
}

const LONG_ABOUT: &str = "\
Measures blockplane.

Results go to standard output: a table, or JSON with --json. Progress goes to standard error. Use an \
optimised build (cargo run --release -p bench -- ...); figures depend on the machine and on what \
else it does, so compare only what one run measured.";

const HANDLERS: &str = "\
Measures what the event loop needs to add, delete and dispatch a handler while 10, 1,000 and 100,000 \
are registered, over the kernel's epoll and over a poller that does nothing.

A row that is flat within its ± % does not depend on the number registered. Needs as many descriptors \
as handlers; where fewer may be opened, fewer are registered and the table says so.";

const IDLE: &str = "\
Starts one server with many disks, starts all their queues, and watches it do nothing: processor time, \
wake-ups, memory per queue, descriptors, threads. Once with null-co behind each disk and once with a \
file.

Expected are 0 wake-ups. Every disk takes some descriptors here and in the server: see `ulimit -Hn`.";

const REQUESTS: &str = "\
Reads 4 KiB at random places through one queue, with a client that watches the ring and with one that \
sleeps until it is called, from null-co and from a file past the page cache; in turn with \
qemu-storage-daemon, if that is installed, which gets the same command line.

Needs two processors that have nothing else to do: one for the server, one for the client.";

/// What to measure.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// The event loop alone: does a handler cost more when many are registered?
    #[command(long_about = HANDLERS)]
    Handlers(handlers::Options),
    /// A server with many disks and nothing to do: wake-ups, memory per queue
    #[command(long_about = IDLE)]
    Idle(idle::Options),
    /// Reads per second through one queue, beside qemu-storage-daemon
    #[command(long_about = REQUESTS)]
    Requests(requests::Options),
}

/// Measures and prints to `out`.
///
/// # Errors
/// What the measurement says, or [`Error::Io`] when `out` cannot be written.
pub fn run(cli: &Cli, out: &mut impl Write) -> Result<()> {
    let (table, json) = measure(&cli.command)?;
    let written = if cli.json {
        writeln!(out, "{json:#}")
    } else {
        write!(out, "{table}")
    };
    match written.and_then(|()| out.flush()) {
        // Whoever pipes it into `head` has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Error::io("print the result")),
    }
}

fn measure(command: &Command) -> Result<(Table, Value)> {
    Ok(match command {
        Command::Handlers(options) => {
            let report = handlers::run(options)?;
            (report.table(), report.json())
        }
        Command::Idle(options) => {
            let report = idle::run(options)?;
            (report.table(), report.json())
        }
        Command::Requests(options) => {
            let report = requests::run(options)?;
            (report.table(), report.json())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_measured() {
        for nonsense in [
            "handlers --registered 0",
            "idle --queues 0",
            "idle --queue-size 100",
            "requests --depth 300",
            "requests --peer x --no-peer",
        ] {
            let args = std::iter::once("bench").chain(nonsense.split(' '));
            assert!(Cli::try_parse_from(args).is_err(), "{nonsense}");
        }
    }
}
