//! `cargo xtask ci`: everything that CI checks, and a table of how long each step took.
//!
//! Two lanes run side by side. Tests of the product wait for much of their time: for deadlines, for processes, for
//! the disk. Meanwhile the other lane builds and runs what has a workspace of its own: the simulator, fuzzing,
//! models of threads, the interoperability suite; and the guests. A failing step does not hide what the others would report; a
//! step whose input could not be built counts as failed.

mod rerun;
mod steps;
mod time_limit;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::{cargo, duplicates, patches, root, sim, tidy};
use steps::Steps;

/// `cargo xtask ci`.
pub(crate) fn ci() -> ExitCode {
    let steps = match Steps::new(guest::target_dir().join("ci")) {
        Ok(steps) => steps,
        Err(error) => {
            eprintln!("ci: a folder for logs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (built, is_built) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| product(&steps, built));
        scope.spawn(|| {
            workspaces_of_their_own(&steps);
            with_the_program(&steps, is_built);
        });
    });
    let (summary, passed) = steps.summary();
    eprint!("{summary}");
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Tests and lints of the product. Sends whether the program was built.
fn product(steps: &Steps, built: Sender<bool>) {
    steps.command("format", cargo(&["fmt", "--all", "--check"]));
    steps.check("one version of each key crate", single_versions);
    steps.check("patches", patches::check);
    steps.check("tidy", tidy::check);
    let tests_built = steps.command("build", cargo(&["test", "--workspace", "--no-run"]));
    // The other lane may have ended, with a panic that is reported there.
    let _ = built.send(tests_built);
    if tests_built {
        let all_but_guests = ["--workspace", "--exclude", "guest"];
        steps.tests("tests", &all_but_guests, || with_binary(cargo(&["test"])));
    } else {
        steps.not_run("tests");
    }
    let mut lints = cargo(&["clippy", "--workspace", "--all-targets"]);
    lints.args(DENY_WARNINGS);
    steps.command("lints", lints);
    let traced = ["--package", "iothread", "--features", "latency-trace"];
    let mut lints = cargo(&["clippy", "--all-targets"]);
    lints.args(traced).args(DENY_WARNINGS);
    steps.command("latency trace, lints", lints);
    let mut tests = cargo(&["test", "--lib"]);
    tests.args(traced);
    steps.command("latency trace, tests", tests);
    let mut planted = xtask("planted");
    planted.args(["--some", PLANTED]);
    steps.command("planted mistakes", planted);
}

/// What is compiled with other flags or other dependencies than the product.
fn workspaces_of_their_own(steps: &Steps) {
    let [interop, fuzz, interleavings] =
        ["interop", "fuzz", "interleavings"].map(|folder| root().join(folder));
    lint(
        steps,
        "simulation, lints",
        sim::folder().as_ref(),
        &["--release"],
    );
    let mut tests = cargo(&["test", "--release"]);
    tests.current_dir(sim::folder());
    steps.command("simulation, tests", tests);
    steps.command("simulation", xtask("check-sim"));

    lint(steps, "fuzzing, lints", &fuzz, &["--release"]);
    steps.command("fuzzing", xtask("check-fuzz"));

    // Without unit tests: those of the product's files need the rest of their crates.
    let mut lints = cargo(&["clippy", "--release"]);
    lints.args(DENY_WARNINGS).current_dir(&interleavings);
    steps.command("interleavings, lints", lints);
    let mut models = cargo(&["run", "--release", "--quiet"]);
    models.current_dir(&interleavings);
    steps.command("interleavings", models);

    lint(steps, "interoperability suite, lints", &interop, &[]);
}

/// Tests that only start the program, once the other lane has built it.
fn with_the_program(steps: &Steps, is_built: Receiver<bool>) {
    let (suite, guests) = ("interoperability suite", "guests");
    if !is_built.recv().unwrap_or(false) {
        steps.not_run(suite);
        steps.not_run(guests);
        return;
    }
    steps.tests(suite, &[], || {
        let mut tests = with_binary(cargo(&["test"]));
        tests.current_dir(root().join("interop"));
        tests
    });
    steps.tests(guests, &["--package", "guest"], || {
        with_binary(cargo(&["test"]))
    });
}

/// How many mistakes are planted, of more than a hundred: a build and a test each, and another for each commit.
const PLANTED: &str = "1";

const DENY_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];

fn lint(steps: &Steps, name: &'static str, folder: &Path, profile: &[&str]) {
    let mut lints = cargo(&["clippy", "--all-targets"]);
    lints.args(profile).args(DENY_WARNINGS).current_dir(folder);
    steps.command(name, lints);
}

/// This program with another command. Its file may have been replaced by a build.
fn xtask(command: &str) -> Command {
    let mut xtask = Command::new("/proc/self/exe");
    xtask.arg(command);
    xtask
}

/// Tells tests which blockplane to test, and which program measures it.
fn with_binary(mut command: Command) -> Command {
    let built = guest::target_dir().join("debug");
    command.env("BLOCKPLANE_BIN", built.join("blockplane"));
    command.env("BLOCKPLANE_BENCH_BIN", built.join("blockplane-bench"));
    command
}

/// Reads the lock file; the error names what is there twice.
fn single_versions() -> Result<(), String> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock"));
    let lock = lock.map_err(|error| format!("Cargo.lock: {error}"))?;
    let found: Vec<String> = duplicates::duplicates(&lock)
        .into_iter()
        .map(|(name, versions)| {
            format!(
                "Cargo.lock has {name} {}: one version only, see docs/dependencies.md",
                versions.join(" and ")
            )
        })
        .collect();
    match found.is_empty() {
        true => Ok(()),
        false => Err(found.join("\n")),
    }
}
