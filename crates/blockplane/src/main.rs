//! blockplane: a storage daemon that gives virtual machines their disks.
//!
//! This is the wiring: options into objects, and their orderly end.

mod activation;
mod aio;
mod attach;
mod chardev;
mod check;
mod configured;
mod confine;
mod control;
mod daemon;
mod daemonize;
mod export;
mod faults;
mod figures;
mod handover;
mod late;
mod later;
mod log;
mod metrics;
mod monitor;
mod node;
mod objects;
mod pidfile;
mod reason;
mod reopen;
mod reports;
mod resize;
mod serve;
mod service;
mod shown;
mod signals;
mod summary;
mod upgrade;

use std::io::Write;
use std::process::ExitCode;

use options::{Generate, Invocation, LogFormat};

fn main() -> ExitCode {
    signals::survive_file_size_limit();
    // SAFETY: no thread was started yet.
    unsafe { upgrade::look_for_predecessor() };
    let mut format = LogFormat::default();
    match run(&mut format) {
        Ok(status) => status,
        Err(error) => {
            upgrade::tell_failed(error.as_ref());
            log::fatal(error.as_ref(), format);
            ExitCode::FAILURE
        }
    }
}

/// Does what the command line says; `format` is the form in which a failure is to be told.
fn run(format: &mut LogFormat) -> Result<ExitCode, Failure> {
    *format = log::format_of_environment()?;
    match options::parse(std::env::args_os().skip(1))? {
        Invocation::Help(text) | Invocation::Version(text) => print(&text)?,
        Invocation::Serve(options) => {
            *format = options.log_format.unwrap_or(*format);
            log::start(options.log_level, *format);
            serve::run(&options, service()?)?;
        }
        Invocation::Daemon(options) => {
            log::start(log::level_of_daemon()?, *format);
            daemon::run(&options, service()?)?;
        }
        Invocation::Configured(options) => {
            *format = options.log_format.unwrap_or(*format);
            configured::run(options, *format, service()?)?;
        }
        Invocation::Generate { what, folder } => {
            let mut commands = options::reference::commands();
            commands.extend(operator::cli::command().get_subcommands().cloned());
            match what {
                Generate::Man => manual::pages(&folder, &commands, &protocol())?,
                Generate::Completions => manual::completions(&folder, &commands)?,
            }
        }
        Invocation::Check(options) => return check::run(&options),
        Invocation::Operator(words) => return Ok(operator::cli::main(words)),
    }
    Ok(ExitCode::SUCCESS)
}

/// What monitors can be asked, for their page.
fn protocol() -> manual::Protocol {
    let schema = monitor::interface().schema();
    manual::Protocol {
        commands: operator::schema::commands(&schema, ""),
        events: operator::schema::events(&schema),
    }
}

/// Who started us, as long as nothing runs beside the main thread.
fn service() -> Result<service::Service, Failure> {
    // SAFETY: no thread was started yet.
    unsafe { service::Service::take() }
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
