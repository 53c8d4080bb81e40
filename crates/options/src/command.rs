//! Commands whose grammar `clap` knows: their words into arguments, and its complaints into ours.

use std::ffi::OsString;

use clap::{Command, FromArgMatches, error::ErrorKind};

use crate::{Problem, UsageError};

/// What a command's words turned out to be.
pub(crate) enum Answer<T> {
    /// Arguments.
    Do(T),
    /// A wish for help, which is this.
    Help(String),
}

/// Reads what follows the command `name`.
pub(crate) fn parse<T: FromArgMatches>(
    name: &'static str,
    command: Command,
    args: impl Iterator<Item = OsString>,
) -> Result<Answer<T>, UsageError> {
    let words = std::iter::once(OsString::from(format!("blockplane {name}"))).chain(args);
    let matches = command.try_get_matches_from(words);
    let error = match matches.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(args) => return Ok(Answer::Do(args)),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp) {
        return Ok(Answer::Help(error.render().to_string()));
    }
    let message = commands::usage_error(&format!("blockplane {name}"), &error);
    Err(Problem::Command { message }.at(name))
}
