//! What is said on standard error, and in which form.
//!
//! Nothing here writes files or turns them over: standard error belongs to whoever started us, and the
//! journal, a terminal or a file is theirs to choose. A log that nobody reads any more never ends a disk.

mod journal;
mod json;

use std::error::Error;
use std::io::Write;

use options::{LogFormat, LogLevel};

use daemon::Failure;

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
        LogLevel::Error => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr);
    let journal = journal::reads_stderr();
    match (format, journal) {
        (LogFormat::Text, false) => builder.init(),
        (LogFormat::Text, true) => builder.event_format(journal::Text::default()).init(),
        (LogFormat::Json, journal) => {
            // One line for each thing said, also for the last.
            std::panic::set_hook(Box::new(|panic| {
                tracing::error!(
                    advice = "this is a mistake in blockplane: report it",
                    "{panic}"
                );
            }));
            builder.event_format(json::Json { journal }).init();
        }
    }
}

/// Says why the program ends, in the form that the log has.
pub(crate) fn fatal(error: &dyn Error, format: LogFormat) {
    let journal = journal::reads_stderr();
    let said = with_remedy(error.to_string());
    let line = match format {
        // It may name files, whose names are in the hands of others.
        LogFormat::Text => format!("blockplane: {}", commands::printable(&said)),
        LogFormat::Json => json::line(&tracing::Level::ERROR, &said),
    };
    let priority = if journal {
        journal::priority(&tracing::Level::ERROR)
    } else {
        ""
    };
    // Nobody may be there to hear it; the exit status says it as well.
    let _ = writeln!(std::io::stderr(), "{priority}{line}");
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
