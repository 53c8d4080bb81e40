//! The command lines: `blockplane qmp …`, `blockplane info …`, `blockplane top …`, `blockplane upgrade …`.

mod help;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::{ask, info, top, upgrade};

/// `blockplane …`
#[derive(Debug, Parser)]
#[command(
    name = "blockplane",
    bin_name = "blockplane",
    term_width = commands::HELP_COLUMNS,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do with a running daemon.
#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Ask a running daemon: any command of its monitor
    #[command(long_about = help::QMP, after_long_help = help::QMP_EXAMPLES)]
    Qmp(ask::Options),
    /// Show what a running daemon has: exports, nodes, iothreads
    #[command(long_about = help::INFO, after_long_help = help::INFO_EXAMPLES)]
    Info(info::Options),
    /// Watch a running daemon: IOPS, MB/s and latency of each disk, CPU time of each iothread
    #[command(long_about = help::TOP, after_long_help = help::TOP_EXAMPLES)]
    Top(top::Options),
    /// Put a new version in a running daemon's place; guests stay connected
    #[command(long_about = help::UPGRADE, after_long_help = help::UPGRADE_EXAMPLES)]
    Upgrade(upgrade::Options),
}

/// The monitor, as each command takes it.
#[derive(Clone, Debug, clap::Args)]
pub struct Monitor {
    /// The socket of the daemon's monitor: path=… of its --chardev
    #[arg(value_name = "SOCKET", value_hint = clap::ValueHint::FilePath)]
    pub socket: PathBuf,
    /// How long an answer may take; 0: as long as it likes
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = commands::time::parse)]
    pub timeout: Duration,
}

impl Monitor {
    /// Connects, and remembers how long answers may take.
    pub(crate) fn connect(&self) -> Result<Client> {
        let timeout = (!self.timeout.is_zero()).then_some(self.timeout);
        Client::connect(&self.socket, timeout)
    }
}

/// The definitions of all commands, for what is made from them: manual pages, completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// All of the program: does what `words` ask for, of which the first is the command.
#[must_use]
pub fn main(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let name = words
        .first()
        .map(|name| name.to_string_lossy().into_owned());
    let name = format!("blockplane {}", name.unwrap_or_default());
    let words = std::iter::once("blockplane".into()).chain(words);
    commands::main(&name, words, |cli: Cli| run(&cli.command))
}

fn run(command: &Command) -> Result<()> {
    let mut out = io::stdout().lock();
    let done = match command {
        Command::Qmp(options) => ask::run(options, &mut out),
        Command::Info(options) => info::run(options, &mut out),
        Command::Top(options) => top::run(options, &mut out),
        Command::Upgrade(options) => upgrade::run(options, &mut out),
    };
    match done {
        // Whoever pipes it into `head` has seen enough.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Prints a text and a line's end, at once.
pub(crate) fn print(out: &mut impl Write, text: &str) -> Result<()> {
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(Error::io("print the result"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples_and_they_are_right() {
        let mut all = command();
        all.build();
        for command in all.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            let examples = command.get_after_long_help().unwrap().to_string();
            assert!(help.contains(&examples), "a line is too long: {examples}");
            assert!(help.lines().all(|line| line.chars().count() <= 80));
            let help = help.replace(" \\\n     ", "");
            let lines = help.lines().map(str::trim);
            let examples: Vec<&str> = lines
                .filter_map(|line| line.strip_prefix("blockplane "))
                .filter(|line| line.starts_with(command.get_name()))
                .collect();
            assert!(examples.len() > 1, "{help}");
            for example in examples {
                let words = example.split(' ').map(|word| word.trim_matches('\''));
                let args = std::iter::once("blockplane").chain(words);
                let parsed = Cli::try_parse_from(args);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for nonsense in [
            "qmp",
            "qmp socket",
            "qmp socket --timeout x quit",
            "top socket --timeout -1",
            "qmp socket --list --events",
            "info",
            "info socket everything",
            "top socket --interval 0",
            "top socket --json",
            "upgrade",
            "upgrade socket --timeout 1s --binary",
        ] {
            let args = std::iter::once("blockplane").chain(nonsense.split(' '));
            assert!(Cli::try_parse_from(args).is_err(), "{nonsense}");
        }
    }
}
