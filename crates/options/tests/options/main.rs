//! Command lines, configuration files and options of objects, from their text to what they mean.
//!
//! - `golden`: recorded texts that people and scripts read, and recorded meanings of options; a live upgrade reads each of these back.
//! - `qsd_command_line`, `notations`: the options of qemu-storage-daemon in both notations.
//! - `serve`, `config`: `blockplane serve`, and configuration files.
//! - `objects`: secrets, throttle groups and servers.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error fails, as it should"
)]

mod config;
mod golden;
mod notations;
mod objects;
mod qsd_command_line;
mod serve;

use options::{DaemonSettingsAndDirectives, Directive, Invocation, ServeSettings, parse};

/// What a command line starts, or its error.
fn invocation(words: &[&str]) -> Result<Invocation, String> {
    parse(words.iter().map(Into::into)).map_err(|error| error.to_string())
}

/// The options of qemu-storage-daemon on a command line.
fn daemon(words: &[&str]) -> Result<DaemonSettingsAndDirectives, String> {
    match invocation(words)? {
        Invocation::Daemon(daemon) => Ok(daemon),
        other => panic!("not a daemon: {other:?}"),
    }
}

/// The last object that a command line creates.
fn last_directive(words: &[&str]) -> Result<Directive, String> {
    Ok(daemon(words)?.directives.pop().expect("an object"))
}

/// `blockplane serve` with these words.
fn serve(words: &[&str]) -> Result<ServeSettings, String> {
    match invocation(&[&["serve"], words].concat())? {
        Invocation::Serve(serve) => Ok(serve),
        other => panic!("not serve: {other:?}"),
    }
}

/// The text that a command line prints.
#[track_caller]
fn help(words: &[&str]) -> String {
    match invocation(words) {
        Ok(Invocation::Help(text)) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}
