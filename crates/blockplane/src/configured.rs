//! `--config FILE`: what a file describes, and options beside it.

use std::io::Write;
use std::path::Path;

use options::{Configured, LogFormat, LogLevel};

use crate::daemon::Process;
use crate::service::Service;
use crate::summary::Summary;
use crate::{Failure, daemon, log};

pub(crate) fn run(options: Configured, format: LogFormat, service: Service) -> Result<(), Failure> {
    let asked = options.log_level;
    let path = options.path.clone();
    let text = read(&path)?;
    let options = options.with(&text)?;
    let Some(level) = asked else {
        log::start(log::level_of_daemon()?, format);
        return daemon::run(&options, service);
    };
    log::start(level, format);
    let announce = || {
        if level > LogLevel::Error {
            let summary = Summary::of(&options.directives);
            let (path, out) = (path.display(), &mut std::io::stdout());
            // Whoever does not want to read it may have closed the pipe.
            let _ = write!(
                out,
                "blockplane: serving what {path} describes\n{summary}\nCtrl-C stops it: requests in flight are finished first.\n"
            );
        }
    };
    let process = Process {
        directives: &options.directives,
        pidfile: options.pidfile.as_deref(),
        metrics: options.metrics.as_ref(),
    };
    daemon::run_until_signalled(process, None, service, announce)
}

/// The text of a configuration.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        format!(
            "cannot read the configuration {}: {error}; blockplane.toml(5) says what is in one",
            path.display()
        )
        .into()
    })
}
