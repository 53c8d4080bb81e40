//! Command lines of `blockplane qmp`, `info`, `top`, `backup`, `mirror`, `bitmap` and `upgrade`: defines, parses and runs them.

mod help;

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::operator::error::{Error, Result};
use crate::operator::{backup, bitmap, info, mirror, qmp, top, upgrade};

/// `blockplane …`
#[derive(Debug, Parser)]
#[command(
    name = "blockplane",
    bin_name = "blockplane",
    term_width = commands::HELP_COLUMNS,
    disable_help_subcommand = true
)]
struct OperatorCli {
    #[command(subcommand)]
    command: OperatorCommand,
}

/// A command for a running daemon.
#[derive(Clone, Debug, Subcommand)]
enum OperatorCommand {
    /// Send commands to the monitor of a running daemon
    #[command(long_about = help::QMP, after_long_help = help::QMP_EXAMPLES)]
    Qmp(qmp::Options),
    /// Show the exports, nodes and iothreads of a running daemon
    #[command(long_about = help::INFO, after_long_help = help::INFO_EXAMPLES)]
    Info(info::Options),
    /// Watch a running daemon: IOPS, MB/s and latency of each disk, CPU time of each iothread
    #[command(long_about = help::TOP, after_long_help = help::TOP_EXAMPLES)]
    Top(top::Options),
    /// Copy a disk while its guest works
    #[command(long_about = help::BACKUP, after_long_help = help::BACKUP_EXAMPLES)]
    Backup(backup::Options),
    /// Move a disk to another place while its guest works
    #[command(long_about = help::MIRROR, after_long_help = help::MIRROR_EXAMPLES)]
    Mirror(mirror::Options),
    /// Show or change the dirty bitmaps of disks
    #[command(long_about = help::BITMAP, after_long_help = help::BITMAP_EXAMPLES)]
    Bitmap(bitmap::Options),
    /// Replace a running daemon with a new version; guests stay connected
    #[command(long_about = help::UPGRADE, after_long_help = help::UPGRADE_EXAMPLES)]
    Upgrade(upgrade::Options),
}

/// The definitions of all commands, for manual pages and completions.
#[must_use]
pub fn command_definitions() -> clap::Command {
    OperatorCli::command()
}

/// Runs an operator command, whose name is the first of `words`.
#[must_use]
pub fn run_operator_command(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let name = words
        .first()
        .map(|name| name.to_string_lossy().into_owned());
    let name = format!("blockplane {}", name.unwrap_or_default());
    let words = std::iter::once("blockplane".into()).chain(words);
    commands::main(&name, words, |cli: OperatorCli| {
        run_parsed_command(&cli.command)
    })
}

/// Runs a command. It succeeds if the reader of its output has ended.
fn run_parsed_command(command: &OperatorCommand) -> Result<()> {
    let mut out = io::stdout().lock();
    let done = match command {
        OperatorCommand::Qmp(options) => qmp::run(options, &mut out),
        OperatorCommand::Info(options) => info::run(options, &mut out),
        OperatorCommand::Top(options) => top::run(options, &mut out),
        OperatorCommand::Backup(options) => backup::run(options, &mut out),
        OperatorCommand::Mirror(options) => mirror::run(options, &mut out),
        OperatorCommand::Bitmap(options) => bitmap::run(options, &mut out),
        OperatorCommand::Upgrade(options) => upgrade::run(options, &mut out),
    };
    match done {
        // The reader of a pipe, such as `head`, may end first.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definitions_are_consistent() {
        command_definitions().debug_assert();
    }

    #[test]
    fn examples_in_help_of_every_command_are_valid() {
        let mut all = command_definitions();
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
                let parsed = OperatorCli::try_parse_from(args);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn invalid_command_lines_are_rejected() {
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
            "backup socket disk",
            "backup socket disk target --persistent",
            "backup socket disk target --speed fast",
            "mirror socket disk",
            "mirror socket disk target --to-node --node-name n",
            "bitmap socket disk name",
            "bitmap socket disk --add",
            "bitmap socket disk name --clear --granularity 4k",
            "bitmap socket disk name --add --remove",
            "upgrade",
            "upgrade socket --timeout 1s --binary",
        ] {
            let args = std::iter::once("blockplane").chain(nonsense.split(' '));
            assert!(OperatorCli::try_parse_from(args).is_err(), "{nonsense}");
        }
    }
}
