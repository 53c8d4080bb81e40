//! blockplane: a storage daemon that gives virtual machines their disks.
//!
//! This is the wiring: options into objects, and their orderly end.

mod aio;
mod attach;
mod chardev;
mod control;
mod daemon;
mod daemonize;
mod export;
mod monitor;
mod node;
mod objects;
mod pidfile;
mod serve;
mod signals;

use std::io::Write;
use std::process::ExitCode;

use options::{Invocation, LogLevel};

fn main() -> ExitCode {
    signals::survive_file_size_limit();
    let outcome = match options::parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Help(text) | Invocation::Version(text)) => print(&text),
        Ok(Invocation::Serve(options)) => {
            log(options.log_level);
            serve::run(&options)
        }
        Ok(Invocation::Daemon(options)) => level_of_daemon().and_then(|level| {
            log(level);
            daemon::run(&options)
        }),
        Ok(Invocation::Bench(words)) => return bench::cli::main(words),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be there to hear it; the exit status says it as well.
            let _ = writeln!(std::io::stderr(), "blockplane: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What ends the program: said in one line, exit status 1.
type Failure = Box<dyn std::error::Error>;

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever pipes the help into `head` has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}

/// Scripts expect a storage daemon to be silent when all is well, and its command line, which is
/// another program's, has no word for anything else.
fn level_of_daemon() -> Result<LogLevel, Failure> {
    const VARIABLE: &str = "BLOCKPLANE_LOG";
    let Some(name) = std::env::var_os(VARIABLE) else {
        return Ok(LogLevel::Error);
    };
    let level = name.to_str().and_then(LogLevel::named);
    level.ok_or_else(|| {
        let shown = name.to_string_lossy();
        format!("{VARIABLE} cannot be '{shown}': error, info, debug or trace is expected").into()
    })
}

fn log(level: LogLevel) {
    let level = match level {
        LogLevel::Error => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        // A log that nobody reads any more must not end a disk.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
}
