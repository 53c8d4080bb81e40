//! `blockplane check FILE`: arguments of the command that validates a configuration file.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, Parser};

use crate::{
    Invocation, UsageError,
    command::{self, ArgsOrHelp},
};

/// Validate a configuration file without starting anything
///
/// All errors are reported at once, each with its line. The objects that the file would create are shown as tables. Disks
/// are not opened, unless --open is given.
#[derive(Parser)]
#[command(
    name = "blockplane check",
    bin_name = "blockplane check",
    // Independent of the terminal, see `HELP_COLUMNS`.
    term_width = commands::HELP_COLUMNS,
    disable_version_flag = true,
    after_help = "The exit status is 0 if a daemon can be started with the file, and 1 if not; hints do not change it."
)]
struct CheckArgs {
    /// The configuration file, see blockplane.toml(5); - is standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,

    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,

    /// Also check that the files exist, that you may read or write them, and that the sockets' folders exist
    #[arg(long)]
    open: bool,
}

/// `blockplane check`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSettings {
    /// The configuration file.
    pub path: PathBuf,
    /// `--json`
    pub json: bool,
    /// `--open`: also check the files that it names.
    pub open: bool,
}

/// The grammar of the command.
pub(crate) fn grammar() -> clap::Command {
    CheckArgs::command()
}

/// Parses the arguments of `check`.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let args: CheckArgs = match command::parse("check", grammar(), args)? {
        ArgsOrHelp::Args(args) => args,
        ArgsOrHelp::Help(help) => return Ok(Invocation::Help(help)),
    };
    Ok(Invocation::Check(CheckSettings {
        path: args.file,
        json: args.json,
        open: args.open,
    }))
}
