//! Project chores: `cargo xtask ci` does everything that CI does, `cargo xtask demo` shows a guest,
//! `cargo xtask deb` makes the Debian package, `cargo xtask fuzz` looks for inputs that break something,
//! `cargo xtask sim` simulates what can happen to the daemon, from seeds, `cargo xtask experiments` compares the daemon with ones that
//! were built from patches, `cargo xtask planted` and `cargo xtask mutants` find out which mistakes no test finds,
//! `cargo xtask tidy` checks rules of style and structure.
//!
//! Tools are called as a developer would call them; their output is theirs. What is here only
//! decides the order and sums up.

mod ci;
mod copy;
mod environment;
mod experiments;
mod fuzz;
mod mutants;
mod patches;
mod planted;
mod sim;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci [--full]
          what every change must pass: format, tidy, lints, all tests, the interoperability suite, guests, simulation, models of
          threads; with --full also what takes longer
  demo    serve a disk to a real Linux guest, twice, and show what the guest saw
  deb     make the Debian package, in target/debian
  experiments [NAME…]
          reproduce the published results: the daemon beside ones that were built from experiments/patches
  fuzz    look for inputs that break something; see fuzz/README.md
  sim     simulate guests, kernel and disk from seeds, and all that can happen to the daemon; --help says how
  tidy    check rules of style and structure, in tracked files
  planted plant mistakes, each of which a test must find; --help says how
  mutants let cargo-mutants make mistakes in what a change touches; --help says how
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    match command.as_deref() {
        Some("ci") => return ci::ci(arguments),
        Some("experiments") => return experiments::experiments(arguments),
        Some("fuzz") => return fuzz::fuzz(arguments),
        Some("mutants") => return mutants::mutants(arguments),
        Some("planted") => return planted::planted(arguments),
        Some("sim") => return sim::sim(arguments),
        _ => {}
    }
    match (command.as_deref(), arguments.next().as_deref()) {
        (Some("demo"), None) => demo(),
        (Some("deb"), None) => deb(),
        (Some("tidy"), None) => match tidy::check() {
            Ok(()) => ExitCode::SUCCESS,
            Err(errors) => {
                eprint!("{errors}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn exit_code(passed: bool) -> ExitCode {
    match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Builds blockplane as tests have it, in a third of the time of a release, and hands it to the demonstration.
fn demo() -> ExitCode {
    let Some(binary) = build("blockplane", "blockplane", &[], "debug") else {
        return ExitCode::FAILURE;
    };
    match guest::demo(&binary, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds both programs as users get them, packs them, and says where the package is.
fn deb() -> ExitCode {
    let built = |package, program| build(package, program, &["--release"], "release");
    let (Some(daemon), Some(measuring)) = (
        built("blockplane", "blockplane"),
        built("bench", "blockplane-bench"),
    ) else {
        return ExitCode::FAILURE;
    };
    let programs = xtask::package::Programs {
        daemon: &daemon,
        measuring: &measuring,
    };
    match xtask::package::debian(programs, &guest::target_dir().join("debian"), &["-Zxz"]) {
        Ok(deb) => {
            eprintln!("made {}", deb.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("deb: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds a program of this package into this folder of the target folder; cargo says what is wrong.
fn build(package: &str, program: &str, profile: &[&str], folder: &str) -> Option<PathBuf> {
    let mut build = cargo(&["build", "--package", package, "--bin", program]);
    let built = build.args(profile).status();
    built
        .is_ok_and(|status| status.success())
        .then(|| guest::target_dir().join(folder).join(program))
}

/// The cargo that called us, in the workspace's root.
fn cargo(arguments: &[&str]) -> Command {
    cargo_in(&root(), arguments)
}

/// The same, in another folder.
fn cargo_in(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(folder);
    command
}

/// The workspace's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
