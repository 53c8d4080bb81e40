//! The command line: `blockplane-bench …`.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use commands::signals;

use crate::error::{Error, Result};
use crate::table::Table;
use crate::{compare, run};

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
    long_about = LONG_ABOUT,
    after_long_help = EXAMPLES
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
    /// A load on any vhost-user-blk server: IOPS, latency, the server's CPU time per request
    #[command(long_about = RUN, after_long_help = RUN_EXAMPLES)]
    Run(run::Options),
    /// The same load on blockplane, on the host itself, on qemu-storage-daemon, on any server
    #[command(long_about = COMPARE, after_long_help = COMPARE_EXAMPLES)]
    Compare(Box<compare::Options>),
    /// Its manual pages or shell completions, for packages
    #[command(after_long_help = GENERATE_EXAMPLES)]
    Generate(Generate),
}

const LONG_ABOUT: &str = "\
Measures blockplane, or any other vhost-user-blk server.

Results go to standard output: a table, or JSON with --json. Progress goes to standard error. Use an \
optimised build (cargo build --release); figures depend on the machine and on what else it does, so \
compare only what one run measured. The exit status is 0 when everything was measured and 1 for any error.";

const EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane serve null-co: --socket /tmp/disk.sock &\n\
\x20 blockplane-bench run /tmp/disk.sock --depth 32\n\
\x20 blockplane-bench compare --folder /mnt/disk --depth 1,32,128\n\
`blockplane-bench COMMAND --help` explains each and has more.";

const RUN: &str = "\
Connects to the socket of a vhost-user-blk server as a virtual machine does, and keeps so many requests \
in flight on its queues. Takes of the protocol what the server has.

Shows medians over the repetitions, their range, and half of it in percent (±). Latency is from \
sending a request to finding its answer. The client is saturated when it found nothing to do in less than \
5 % of the time: the server could do more. The server is saturated when one of its threads used 95 % of a \
processor or more: it has no time left, or it polls.

With --json, `each` has the counts of each repetition, to be compared with those of the server: `requests` are those \
that the figures are made of, `requests_in_all` has those of the warm-up and of the end too. With --status-interval, \
`course` lists how many of a thread's requests had completed by when, as pairs of nanoseconds of the monotonic clock \
and a count.

With --verify nothing is measured: for --time, blocks are written that hold their place, a count and a \
seed; what is read meanwhile is compared, and in the end all is flushed and read back, through other \
queues than it was written through. The first difference is an error that says where it is, what was \
expected and what came.";

const RUN_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench run /tmp/disk.sock --depth 1 --client blocking\n\
\x20 blockplane-bench run /tmp/disk.sock --pattern randrw --verify \\\n\
\x20     --destroy-data --time 10s";

const COMPARE: &str = "\
Puts the same load on several servers and on the host itself, in turn: each repetition visits each of \
them once. By default blockplane is compared with the same file read without any server (raw), and \
with qemu-storage-daemon if that is installed; both servers get the same command line.

raw is what a program on the host gets at best: one thread with all requests in flight, through the \
io that blockplane itself uses, on the processor where the servers run. The blockplane that is measured is the one beside \
this program, unless --server or BLOCKPLANE_BIN names another.

Images of Ceph RBD exist already (`rbd create`). Fill them before reading (`rbd bench --io-type write \
--io-pattern seq`): what was never written is read without the cluster's disks. Only the contender that \
is measured has them open, since a writer locks its image: servers are started and stopped in turn. \
librbd's cache is off in all. \
Processor time is that of the whole process, with librbd's threads; the cluster's daemons run where \
they like. Where they have no other processors, compare with --client blocking.

Needs two processors that have nothing else to do: one for the servers, one for the client. With \
several iothreads, see --no-pinning.";

const COMPARE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench compare --folder /mnt/disk --depth 1,32,128\n\
\x20 blockplane-bench compare --backing null,tmpfs --client polling,blocking\n\
\x20 blockplane-bench compare --aio io_uring \\\n\
\x20     --servers ours,raw:io_uring,qemu-storage-daemon:io_uring\n\
\x20 blockplane-bench compare --servers ours --backing null \\\n\
\x20     --socket /tmp/other.sock\n\
\x20 blockplane-bench compare --backing nbd:/tmp/nbdkit.sock --depth 32\n\
\x20 blockplane-bench compare --backing rbd:rbd/disk:conf=/etc/ceph/a.conf \\\n\
\x20     --client blocking --disks 8 --iothreads 2 --no-pinning";

const GENERATE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench generate man pages";

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
    let (tables, json) = match &cli.command {
        Command::Run(options) => {
            let (table, json) = run::run(options)?;
            (vec![table], json)
        }
        Command::Compare(options) => compare::run(options)?,
        Command::Generate(options) => {
            let write = match options.what {
                Generated::Man => manual::write_program_pages,
                Generated::Completions => manual::write_program_completions,
            };
            return write(&options.folder, &grammar()).map_err(Error::io("generate"));
        }
    };
    match cli.json {
        true => print(out, &format!("{json:#}\n")),
        false => print_tables(out, &tables),
    }
}

/// Prints tables, with an empty line between them.
///
/// # Errors
/// [`Error::Io`] when `out` cannot be written.
pub fn print_tables(out: &mut impl Write, tables: &[Table]) -> Result<()> {
    let tables: Vec<String> = tables.iter().map(Table::to_string).collect();
    print(out, &tables.join("\n"))
}

fn print(out: &mut impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe, such as `head`, may end first.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Error::io("print the result")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_and_its_examples_are_valid() {
        let mut all = grammar();
        all.build();
        for command in all.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            let fits = help.lines().all(|line| line.chars().count() <= 80);
            assert!(fits, "{help}");
            let help = help.replace(" \\\n     ", "");
            let examples = help.lines();
            for example in examples.filter(|line| line.starts_with("  blockplane-bench")) {
                let parsed = Cli::try_parse_from(example.split_whitespace());
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn invalid_command_lines_are_refused_before_measuring() {
        for wrong in [
            "run",
            "run socket --depth 257",
            "run socket --bs 100",
            "run socket --bs 2M",
            "run socket --time 0",
            "run socket --pattern backwards",
            "run socket --pattern randrw:101",
            "compare --servers raw:threads",
            "compare --size 1000",
            "compare --backing rbd:disk",
            "compare --backing rbd:rbd/disk:conf",
        ] {
            let args = std::iter::once("bench").chain(wrong.split(' '));
            assert!(Cli::try_parse_from(args).is_err(), "{wrong}");
        }
    }
}
