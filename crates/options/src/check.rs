//! `blockplane check FILE`: is a configuration right?

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, Parser};

use crate::{
    Invocation, UsageError,
    command::{self, Answer},
};

/// Check a configuration file without starting anything
///
/// Everything that is wrong is said at once, each with its line. What would run is shown as tables. Disks are not
/// touched, unless --open is given.
#[derive(Parser)]
#[command(
    name = "blockplane check",
    bin_name = "blockplane check",
    // Not the terminal's: the same words always give the same text.
    term_width = commands::HELP_COLUMNS,
    disable_version_flag = true,
    after_help = "The exit status is 0 if a daemon can be started with the file, and 1 if not; hints do not change it."
)]
struct Args {
    /// The configuration, see blockplane.toml(5); - is standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,

    /// Also look whether the files are there and may be read or written by you, and the sockets' folders
    #[arg(long)]
    open: bool,
}

/// `blockplane check`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The configuration.
    pub path: PathBuf,
    /// `--json`
    pub json: bool,
    /// `--open`: look at the files that it names.
    pub open: bool,
}

/// The grammar.
pub(crate) fn grammar() -> clap::Command {
    Args::command()
}

/// Reads what follows `check`.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let args: Args = match command::parse("check", grammar(), args)? {
        Answer::Do(args) => args,
        Answer::Help(help) => return Ok(Invocation::Help(help)),
    };
    Ok(Invocation::Check(Check {
        path: args.file,
        json: args.json,
        open: args.open,
    }))
}
