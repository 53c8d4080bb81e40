//! Project chores: `cargo xtask ci` does everything that CI does, `cargo xtask demo` shows a guest,
//! `cargo xtask instructions` counts what a request costs.
//!
//! Tools are called as a developer would call them; their output is theirs. What is here only
//! decides the order and sums up.

mod ci;
mod duplicates;
mod instructions;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci      format, lints, duplicate dependencies, all tests, the interoperability suite, the guests
  demo    serve a disk to a real Linux guest, twice, and show what the guest saw
  instructions
          count the instructions that a request costs (needs valgrind)
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("ci"), None) => ci::ci(),
        (Some("demo"), None) => demo(),
        (Some("instructions"), None) => instructions::instructions(),
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Builds blockplane as users get it and hands it to the demonstration.
fn demo() -> ExitCode {
    let built = cargo(&["build", "--release", "--package", "blockplane"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    match guest::demo(
        &guest::target_dir().join("release/blockplane"),
        &mut std::io::stdout(),
    ) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The cargo that called us, in the workspace's root.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// The workspace's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
