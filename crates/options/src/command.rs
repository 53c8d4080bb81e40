//! Parses the arguments of a command by its `clap` grammar, and converts help and errors to those of this crate.

use std::ffi::OsString;

use clap::{Command, FromArgMatches, error::ErrorKind};

use crate::{Problem, UsageError};

/// The parsed arguments of a command.
pub(crate) enum ArgsOrHelp<T> {
    /// Arguments.
    Args(T),
    /// The requested help text.
    Help(String),
}

/// Parses the arguments of the command `name`.
pub(crate) fn parse<T: FromArgMatches>(
    name: &'static str,
    command: Command,
    args: impl Iterator<Item = OsString>,
) -> Result<ArgsOrHelp<T>, UsageError> {
    let words = std::iter::once(OsString::from(format!("blockplane {name}"))).chain(args);
    let matches = command.try_get_matches_from(words);
    let error = match matches.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(args) => return Ok(ArgsOrHelp::Args(args)),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp) {
        return Ok(ArgsOrHelp::Help(error.render().to_string()));
    }
    let message = commands::usage_error_text(&format!("blockplane {name}"), &error);
    Err(Problem::Command { message }.in_option(name))
}
