//! `cargo xtask guests`: real guests by several versions of QEMU, firmware and Linux, on each of our devices.

mod options;
mod table;

use std::io::Write;
use std::process::ExitCode;

use guest::matrix::{self, Cell};
use guest::{Program, Progress};

use options::{Action, Options};

/// Exit status 1 if a cell failed or could not be run, 2 for a wrong option.
pub fn guests(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(Action::Run(options)) => options,
        Ok(Action::Help) => {
            return print(options::USAGE);
        }
        Err(message) => {
            eprint!("guests: {message}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let cells: Vec<Cell> = Cell::all()
        .into_iter()
        .filter(|cell| options.filter.matches(*cell))
        .collect();
    if options.list {
        return print(&table::list(&cells));
    }
    match run(&options, &cells) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("guests: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no cell failed.
fn run(options: &Options, cells: &[Cell]) -> guest::Result<bool> {
    let program = match std::env::var_os("BLOCKPLANE_BIN") {
        Some(path) => Program::Blockplane(path.into()),
        None => match super::build("blockplane", "blockplane", &["--release"], "release") {
            Some(path) => Program::Blockplane(path),
            None => return Ok(false),
        },
    };
    let fetching =
        Progress::start("guests: fetching the QEMU, firmware and kernels that are not there yet");
    let packages = matrix::packages(cells)?;
    drop(fetching);
    let outcomes = matrix::run(&program, cells);
    for outcome in outcomes.iter().filter(|outcome| outcome.failed()) {
        eprint!("{}", table::failure(outcome));
    }
    let results = match options.json {
        true => table::json(&packages, &outcomes),
        false => table::text(&packages, &outcomes),
    };
    Ok(print(&results) == ExitCode::SUCCESS && !outcomes.iter().any(matrix::Outcome::failed))
}

/// On standard output; whether that is still there is the status.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
