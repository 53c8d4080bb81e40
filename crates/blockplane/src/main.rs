//! blockplane: a storage daemon for the disks of virtual machines.
//!
//! This crate is the command line; the daemon itself is the crate `daemon`.

mod announcement;
mod check;
mod config_file;
mod log;
mod serve;
mod summary;

use std::io::Write;
use std::process::ExitCode;

use daemon::BoxError;
use daemon::service::ServiceManagerConnection;
use options::{Invocation, LogFormat, ManOrCompletions};

/// Prepares the process, and runs the command line. An error is reported in the format of the log.
fn main() -> ExitCode {
    daemon::process::ignore_sigxfsz();
    // SAFETY: no thread was started yet.
    unsafe { daemon::upgrade::init_predecessor_channel() };
    let mut format = LogFormat::default();
    match run(&mut format) {
        Ok(ExitCode::SUCCESS) => daemon::process::close_images_and_exit(0),
        Ok(status) => status,
        Err(error) => {
            daemon::upgrade::report_failure_to_predecessor(error.as_ref());
            log::report_fatal_error(error.as_ref(), format);
            daemon::process::close_images_and_exit(1)
        }
    }
}

/// Executes the command line; sets `format` to the log format in which to report an error.
fn run(format: &mut LogFormat) -> Result<ExitCode, BoxError> {
    *format = log::read_log_format_variable()?;
    if block::IS_SIMULATED {
        return Err("this program was built with the simulator's disks: build it without --workspace (cargo build --release)".into());
    }
    match options::parse(std::env::args_os().skip(1))? {
        Invocation::Help(text) | Invocation::Version(text) => print(&text)?,
        Invocation::Serve(options) => {
            *format = options.log_format.unwrap_or(*format);
            log::start(options.log_level, *format);
            serve::run(&options, take_service_manager_from_environment()?)?;
        }
        Invocation::Daemon(options) => {
            log::start(log::read_log_level_variable()?, *format);
            daemon::run::run_as_qemu_storage_daemon(
                &options,
                take_service_manager_from_environment()?,
            )?;
        }
        Invocation::ConfigFile(options) => {
            *format = options.log_format.unwrap_or(*format);
            config_file::run(options, *format, take_service_manager_from_environment()?)?;
        }
        Invocation::Generate { what, folder } => {
            let mut commands = options::reference::command_grammars();
            commands.extend(
                blockplane::operator::cli::command_definitions()
                    .get_subcommands()
                    .cloned(),
            );
            match what {
                ManOrCompletions::Man => {
                    manual::write_blockplane_pages(&folder, &commands, &qmp_summary_for_manual())?
                }
                ManOrCompletions::Completions => {
                    manual::write_blockplane_completions(&folder, &commands)?
                }
            }
        }
        Invocation::Check(options) => return check::run(&options),
        Invocation::Operator(words) => {
            return Ok(blockplane::operator::cli::run_operator_command(words));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The commands and events of monitors, for the manual page.
fn qmp_summary_for_manual() -> manual::QmpSummary {
    let schema = daemon::qmp_schema();
    manual::QmpSummary {
        commands: blockplane::operator::schema::command_lines(&schema, ""),
        events: blockplane::operator::schema::event_lines(&schema),
    }
}

/// The service manager's settings in the environment; only before other threads are started.
fn take_service_manager_from_environment() -> Result<ServiceManagerConnection, BoxError> {
    // SAFETY: no thread was started yet.
    unsafe { ServiceManagerConnection::take_from_environment() }
}

/// Prints a text, unless its reader has ended.
fn print(text: &str) -> Result<(), BoxError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe, such as `head`, may end first.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => Ok(done?),
    }
}
