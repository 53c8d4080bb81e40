//! `--config FILE`: runs the daemon from a configuration file and additional options.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use daemon::process::ProcessOptions;
use daemon::service::ServiceManagerConnection;
use daemon::{BoxError, run, upgrade};
use options::{ConfigError, ConfigFileWithOptions, LogFormat, LogLevel};

use crate::log;
use crate::summary::ConfigSummary;

/// Runs the daemon. If an option or the file sets the log level, it announces what it serves, as `serve` does.
pub(crate) fn run(
    options: ConfigFileWithOptions,
    format: LogFormat,
    service: ServiceManagerConnection,
) -> Result<(), BoxError> {
    let requested_level = options.log_level;
    let bytes = read_config_bytes(&options.path)?;
    let path = display_path(&options.path).to_owned();
    let text = ConfigError::decode_utf8(&path, bytes)?;
    let options = options.with_other_path_in_errors(&path).parse(&text)?;
    let Some(level) = requested_level else {
        log::start(log::read_log_level_variable()?, format);
        return run::run_as_qemu_storage_daemon(&options, service);
    };
    log::start(level, format);
    let announce = || {
        if level > LogLevel::Error {
            let summary =
                ConfigSummary::of_directives(&options.directives, options.metrics.as_ref());
            let path = commands::printable_path(&path);
            let summary = commands::printable(&summary.to_string());
            let out = &mut std::io::stdout();
            // The reader may have closed the pipe; ignore the error.
            let _ = write!(
                out,
                "blockplane: serving the configuration {path}\n{summary}\nCtrl-C stops it after completing the requests in flight.\n"
            );
        }
    };
    let process = ProcessOptions {
        directives: &options.directives,
        pidfile: options.pidfile.as_deref(),
        metrics: options.metrics.as_ref(),
        confinement: &options.confinement,
        created_files: &[],
        background: false,
    };
    run::run_in_foreground(process, service, announce)
}

/// Maximum size of a configuration; one with ten thousand disks has two million bytes.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The name for standard input.
const STANDARD_INPUT: &str = "-";

/// The path as errors show it.
pub(crate) fn display_path(path: &Path) -> &Path {
    if path == Path::new(STANDARD_INPUT) {
        Path::new("<stdin>")
    } else {
        path
    }
}

/// Reads a configuration; refuses pipes and input without end.
pub(crate) fn read_config_bytes(path: &Path) -> Result<Vec<u8>, BoxError> {
    let failed = |error: &dyn std::fmt::Display| {
        format!(
            "cannot read the configuration {}: {error}; blockplane.toml(5) describes its format",
            commands::printable_path(display_path(path))
        )
    };
    let mut bytes = Vec::new();
    let outcome = if path == Path::new(STANDARD_INPUT) {
        if upgrade::has_predecessor() {
            return Err(failed(
                &"standard input was read by the previous process; restart instead",
            )
            .into());
        }
        let input = std::io::stdin().lock();
        input.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes)
    } else {
        if is_named_pipe(path) {
            return Err(failed(
                &"it is a named pipe; name a regular file, or - for standard input",
            )
            .into());
        }
        let file = File::open(path).map_err(|error| failed(&error))?;
        file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes)
    };
    outcome.map_err(|error| failed(&error))?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(failed(&"it is larger than 16 MiB").into());
    }
    Ok(bytes)
}

/// Whether a path leads to a named pipe, which may never get a writer.
fn is_named_pipe(path: &Path) -> bool {
    // A pipe of the shell, /dev/fd/63, leads to no path, so this fails.
    let target = path.canonicalize().and_then(|path| path.metadata());
    target.is_ok_and(|target| target.file_type().is_fifo())
}
