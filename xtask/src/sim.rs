//! `cargo xtask sim`: builds the simulator in `sim/`, and runs it.

use std::process::{Command, ExitCode};

use crate::cargo;

/// `cargo xtask sim …`.
pub(crate) fn sim(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.collect();
    match simulator(&arguments).status() {
        Ok(status) => crate::exit_code(status.success()),
        Err(error) => {
            eprintln!("sim: cannot start cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The simulator with these options.
pub(crate) fn simulator<A: AsRef<std::ffi::OsStr>>(options: &[A]) -> Command {
    let build = ["run", "--package", "sim", "--profile", "sim", "--quiet"];
    let mut command = cargo(&build);
    command.arg("--").args(options);
    command
}
