//! The log on standard error, as text or JSON.
//!
//! Nothing here writes files or turns them over: standard error belongs to whoever started us, and the
//! journal, a terminal or a file is theirs to choose. A log that nobody reads any more never ends a disk.

mod journal;

use std::error::Error;
use std::io::{IsTerminal, Write};

use options::{LogFormat, LogLevel};
use tracing::Level;
use tracing::dispatcher::{Dispatch, with_default};
use tracing_subscriber::util::SubscriberInitExt;

use daemon::Failure;
use journal::WithPriority;

/// How much is logged without a command.
const LEVEL_VARIABLE: &str = "BLOCKPLANE_LOG";
/// The form of it, unless an option says it.
const FORMAT_VARIABLE: &str = "BLOCKPLANE_LOG_FORMAT";

/// Scripts expect a storage daemon to be silent when all is well, and its command line, which is
/// another program's, has no word for anything else.
pub(crate) fn level_of_daemon() -> Result<LogLevel, Failure> {
    Ok(variable(
        LEVEL_VARIABLE,
        LogLevel::named,
        "error (with warnings; also warn), info, debug or trace",
    )?
    .unwrap_or(LogLevel::Error))
}

/// The form that the environment asks for.
pub(crate) fn format_of_environment() -> Result<LogFormat, Failure> {
    Ok(variable(FORMAT_VARIABLE, LogFormat::named, "text or json")?.unwrap_or_default())
}

fn variable<T>(
    name: &str,
    read: fn(&str) -> Option<T>,
    expected: &str,
) -> Result<Option<T>, Failure> {
    let Some(value) = std::env::var_os(name) else {
        return Ok(None);
    };
    match value.to_str().and_then(read) {
        Some(value) => Ok(Some(value)),
        None => {
            let shown = value.to_string_lossy();
            Err(format!("{name} cannot be '{shown}': {expected} is expected").into())
        }
    }
}

/// From now on what happens is logged.
pub(crate) fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match (format, journal::reads_stderr()) {
        (LogFormat::Text, false) => builder.init(),
        (LogFormat::Text, true) => builder
            .without_time()
            .with_level(false)
            .map_event_format(WithPriority)
            .init(),
        (LogFormat::Json, _) => {
            // One line for each thing said, also for the last.
            std::panic::set_hook(Box::new(|panic| {
                tracing::error!(
                    advice = "this is a mistake in blockplane: report it",
                    "{panic}"
                );
            }));
            json(level).init();
        }
    }
}

/// One JSON object per line.
fn json(level: Level) -> Dispatch {
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .json()
        // `message` and `advice` stay members of the object itself, where collectors of logs look for them.
        .flatten_event(true);
    if journal::reads_stderr() {
        builder.map_event_format(WithPriority).into()
    } else {
        builder.into()
    }
}

/// Says why the program ends, in the form that the log has.
pub(crate) fn fatal(error: &dyn Error, format: LogFormat) {
    let said = with_remedy(error.to_string());
    if format == LogFormat::Json {
        // There may be no log yet.
        return with_default(&json(Level::ERROR), || tracing::error!("{said}"));
    }
    let priority = if journal::reads_stderr() {
        journal::priority(&Level::ERROR)
    } else {
        ""
    };
    // It may name files, whose names are in the hands of others.
    let said = commands::printable(&said);
    // Nobody may be there to hear it; the exit status says it as well.
    let _ = writeln!(std::io::stderr(), "{priority}blockplane: {said}");
}

/// A limit on open files may be met by anything; the remedy is the same.
fn with_remedy(mut said: String) -> String {
    const REMEDY: &str = "raise `ulimit -n`";
    let kernel_says = std::io::Error::from(rustix::io::Errno::MFILE).to_string();
    if said.contains(&kernel_says) && !said.contains(REMEDY) {
        said += &format!("; {REMEDY} (`LimitNOFILE=` of a service)");
    }
    said
}
