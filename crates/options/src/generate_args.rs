//! `blockplane generate man|completions DIR`: arguments of the command that writes manual pages or completions, for
//! packages.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, Parser, ValueEnum};

use crate::{
    Invocation, UsageError,
    command::{self, ArgsOrHelp},
};

/// Write manual pages or shell completions into a folder, for packages
#[derive(Parser)]
#[command(
    name = "blockplane generate",
    bin_name = "blockplane generate",
    // Independent of the terminal, see `HELP_COLUMNS`.
    term_width = commands::HELP_COLUMNS,
    disable_version_flag = true
)]
struct GenerateArgs {
    /// man: blockplane.1 and others; completions: blockplane.bash, _blockplane, blockplane.fish
    #[arg(value_enum)]
    what: ManOrCompletions,

    /// The folder, created if it does not exist
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    folder: PathBuf,
}

/// Kind of files to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ManOrCompletions {
    /// Manual pages
    Man,
    /// Completions for bash, zsh and fish
    Completions,
}

/// The grammar of the command.
pub(crate) fn grammar() -> clap::Command {
    GenerateArgs::command()
}

/// Parses the arguments of `generate`.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let args: GenerateArgs = match command::parse("generate", grammar(), args)? {
        ArgsOrHelp::Args(args) => args,
        ArgsOrHelp::Help(help) => return Ok(Invocation::Help(help)),
    };
    Ok(Invocation::Generate {
        what: args.what,
        folder: args.folder,
    })
}
