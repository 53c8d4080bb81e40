//! `cargo xtask sim`: builds the simulator in `sim/`, and runs it.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::root;

/// How long seeds run for `cargo xtask ci`.
const CI_TIME: &str = "20s";

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

/// New seeds, as many as there is time for: the day's, so that another run has others.
pub(crate) fn check() -> bool {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let first = now.as_secs().to_string();
    let arguments = ["--time", CI_TIME, "--first", &first].map(str::to_owned);
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
