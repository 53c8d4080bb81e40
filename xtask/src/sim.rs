//! `cargo xtask sim`: builds the simulator in `sim/`, and runs it.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::root;

/// The seeds of `cargo xtask ci`: the same each time, and a number instead of a time, so that the result does not depend on
/// the day or on how fast the machine is. They take 15 s on an idle core.
const CI_FIRST: u64 = 1;
const CI_SEEDS: u64 = 20_000;

fn simulator() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder());
    command
}

/// A workspace of its own.
pub(crate) fn folder() -> impl AsRef<Path> {
    root().join("sim")
}

/// `cargo xtask sim …`.
pub(crate) fn sim(arguments: impl Iterator<Item = String>) -> ExitCode {
    if run(arguments) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The seeds of CI. `cargo xtask sim` searches others.
pub(crate) fn check() -> bool {
    let (first, seeds) = (CI_FIRST.to_string(), CI_SEEDS.to_string());
    let arguments = ["--first", &first, "--seeds", &seeds].map(str::to_owned);
    run(arguments.into_iter())
}

fn run(arguments: impl Iterator<Item = String>) -> bool {
    let mut command = simulator();
    command.args(["run", "--release", "--quiet", "--"]);
    command.args(arguments);
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("sim: cannot start cargo: {error}");
            false
        }
    }
}
