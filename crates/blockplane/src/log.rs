//! Logging to standard error, as text or JSON, and the environment variables that set its level and format.
//!
//! Log files and their rotation are up to the parent process, which connects standard error to the journal, a
//! terminal or a file. A closed log never stops a disk.

mod journal;
mod line_limit;
mod printable;
mod repeated_lines;

use std::error::Error;
use std::io::{IsTerminal, Write};

use options::{LogFormat, LogLevel};
use tracing::Level;
use tracing::dispatcher::{Dispatch, with_default};
use tracing_subscriber::util::SubscriberInitExt;

use daemon::BoxError;
use journal::JournalPriorityFormat;
use printable::{JsonWriter, printable_fields};
use repeated_lines::LimitedFormat;

/// Environment variable for the log level, unless `serve` has an option for it.
const LEVEL_VARIABLE: &str = "BLOCKPLANE_LOG";
/// Environment variable for the log format, unless an option sets it.
const FORMAT_VARIABLE: &str = "BLOCKPLANE_LOG_FORMAT";

/// Reads the daemon's log level from its environment variable: its command line is that of qemu-storage-daemon, which
/// has no option for it. Scripts expect a storage daemon to be silent without errors.
pub(crate) fn read_log_level_variable() -> Result<LogLevel, BoxError> {
    Ok(parse_environment_variable(
        LEVEL_VARIABLE,
        LogLevel::from_name,
        "error (with warnings; also warn), info, debug or trace",
    )?
    .unwrap_or(LogLevel::Error))
}

/// Reads the log format from its environment variable.
pub(crate) fn read_log_format_variable() -> Result<LogFormat, BoxError> {
    Ok(
        parse_environment_variable(FORMAT_VARIABLE, LogFormat::from_name, "text or json")?
            .unwrap_or_default(),
    )
}

/// Reads an environment variable, if it is set, with `parse`. `expected` says in an error what its value can be.
fn parse_environment_variable<T>(
    name: &str,
    parse: fn(&str) -> Option<T>,
    expected: &str,
) -> Result<Option<T>, BoxError> {
    let Some(value) = std::env::var_os(name) else {
        return Ok(None);
    };
    match value.to_str().and_then(parse) {
        Some(value) => Ok(Some(value)),
        None => {
            let shown = value.to_string_lossy();
            Err(format!("{name} cannot be '{shown}': {expected} is expected").into())
        }
    }
}

/// Starts logging to standard error, in the form that its reader expects.
pub(crate) fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let has_colors = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .log_internal_errors(false)
        .with_ansi(has_colors)
        .fmt_fields(printable_fields())
        .with_writer(std::io::stderr);
    match (format, journal::is_stderr_journal()) {
        (LogFormat::Text, false) => builder
            // Lines that are limited are formatted as strings first, which have no colors by themselves.
            .map_event_format(|event| LimitedFormat::new(event.with_ansi(has_colors), format))
            .init(),
        (LogFormat::Text, true) => builder
            .without_time()
            .with_level(false)
            .map_event_format(|event| LimitedFormat::new(JournalPriorityFormat(event), format))
            .init(),
        (LogFormat::Json, _) => {
            // Each message is one line, a panic too.
            std::panic::set_hook(Box::new(|panic| {
                tracing::error!(advice = "this is a bug in blockplane: report it", "{panic}");
            }));
            json_dispatch(level).init();
        }
    }
}

/// The dispatcher that writes each message as a JSON object on a line of its own.
fn json_dispatch(level: Level) -> Dispatch {
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .log_internal_errors(false)
        .with_writer(|| JsonWriter)
        .json()
        // `message` and `advice` stay members of the object itself, where collectors of logs look for them.
        .flatten_event(true);
    if journal::is_stderr_journal() {
        builder
            .map_event_format(|event| {
                LimitedFormat::new(JournalPriorityFormat(event), LogFormat::Json)
            })
            .into()
    } else {
        builder
            .map_event_format(|event| LimitedFormat::new(event, LogFormat::Json))
            .into()
    }
}

/// Reports a fatal error in the format of the log.
pub(crate) fn report_fatal_error(error: &dyn Error, format: LogFormat) {
    let text = append_remedy_if_too_many_open_files(error.to_string());
    if format == LogFormat::Json {
        // Logging may not have started yet.
        return with_default(&json_dispatch(Level::ERROR), || tracing::error!("{text}"));
    }
    let priority = if journal::is_stderr_journal() {
        journal::priority_prefix(&Level::ERROR)
    } else {
        ""
    };
    // File names in it may contain control characters.
    let text = commands::printable(&text);
    // Standard error may be closed; the exit status reports the failure as well.
    let _ = writeln!(std::io::stderr(), "{priority}blockplane: {text}");
}

/// Appends the remedy to errors about the limit of open files.
fn append_remedy_if_too_many_open_files(mut text: String) -> String {
    const REMEDY: &str = "raise `ulimit -n`";
    let errno_text = std::io::Error::from(rustix::io::Errno::MFILE).to_string();
    if text.contains(&errno_text) && !text.contains(REMEDY) {
        text += &format!("; {REMEDY} (`LimitNOFILE=` of a service)");
    }
    text
}
