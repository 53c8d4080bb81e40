//! `cargo xtask ci`: what every change must pass, or with `--full` what takes longer as well, and tables of where the time went.
//!
//! Two lanes run side by side. One builds the product and runs its test programs, which wait for much of their time: for deadlines,
//! processes, disks. The other one meanwhile builds and runs what is compiled in other ways (the simulator, models of threads,
//! the interoperability suite), then the lints. A failing step does not hide what the others would report; a step whose input could
//! not be built counts as failed.
//!
//! Clippy as the compiler of the tests' build was measured: that build took a quarter longer, and the slowest tests wait for it.

mod commit_seed;
mod missing;
mod output;
mod programs;
mod repeat;
mod seeds;
mod steps;
mod test_programs;
mod time_limit;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Sender, channel};

use crate::{cargo, cargo_in, planted, root, tidy};
use steps::Steps;
use test_programs::TestProgram;

const USAGE: &str = "\
usage: cargo xtask ci [--full]

  --full  also tests marked 'full run only', longer ones, all planted mistakes, half an hour of fuzzing, and more seeds of the
          simulator
";

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// What every change must pass.
    Quick,
    /// Also what takes longer.
    Full,
}

/// `cargo xtask ci …`.
pub(crate) fn ci(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let extent = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => Extent::Quick,
        (Some("--full"), None) => Extent::Full,
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let steps = match Steps::new(guest::target_dir().join("ci"), extent) {
        Ok(steps) => steps,
        Err(error) => {
            eprintln!("ci: a folder for logs: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (built, is_built) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| run_product_lane(&steps, built));
        let interop = run_other_builds(&steps, extent);
        let is_built = is_built.recv().unwrap_or(false);
        steps.tests("interoperability suite", interop.filter(|_| is_built));
        // Also the simulator, and so the product with the simulator's seams: half the time of one run for each.
        lint(&steps, "lints", &root(), &["--workspace"]);
    });
    if extent == Extent::Full {
        full(&steps);
    }
    let (summary, passed) = steps.summary();
    eprint!("{summary}");
    crate::exit_code(passed)
}

/// Builds and runs the product's tests. Sends whether they were built.
fn run_product_lane(steps: &Steps, built: Sender<bool>) {
    steps.command("format", cargo(&["fmt", "--all", "--check"]));
    // Two versions of them compile, and then differ in types that should be the same, or in what they know of the kernel. Cargo
    // refuses a name that two packages have.
    let mut single = cargo(&["tree", "--workspace", "--depth=0", "--invert=io-uring"]);
    single.args(["--invert=rustix", "--invert=vm-memory"]);
    steps.command("one version of each key crate", single);
    steps.check("patches", planted::check_patches);
    steps.check("tidy", tidy::check);
    let build = cargo(&[
        "test",
        "--no-run",
        "--tests",
        "--workspace",
        "--exclude",
        "sim",
    ]);
    let programs = steps.build("build", build);
    // The other lane may have ended, with a panic that is reported there.
    let _ = built.send(programs.is_some());
    steps.tests("tests", programs);
}

/// Builds and runs what is compiled with other features or other dependencies than the product. Returns the programs of the
/// interoperability suite, which need the product.
fn run_other_builds(steps: &Steps, extent: Extent) -> Option<Vec<TestProgram>> {
    let build = cargo(&["test", "--no-run", "--package", "sim", "--profile", "sim"]);
    let programs = steps.build("simulator, build", build);
    steps.tests("simulator, tests", programs);
    seeds::run(steps, extent);

    let mut models = cargo(&["run", "--release", "--quiet"]);
    models.current_dir(root().join("interleavings"));
    steps.command("interleavings", models);

    let mut build = cargo(&["test", "--no-run"]);
    build.current_dir(root().join("interop"));
    steps.build("interoperability suite, build", build)
}

/// What is run before a release only.
fn full(steps: &Steps) {
    let traced = ["--package", "iothread", "--features", "latency-trace"];
    lint(steps, "latency trace, lints", &root(), &traced);
    let mut tests = cargo(&["test", "--no-run", "--lib"]);
    tests.args(traced);
    let programs = steps.build("latency trace, build", tests);
    steps.tests("latency trace, tests", programs);
    // The lines that the simulator replaces.
    let shipped = ["--workspace", "--exclude", "sim"];
    lint(steps, "lints without the simulator", &root(), &shipped);
    for folder in ["interop", "fuzz"] {
        let name = format!("{folder}, lints");
        lint(steps, &name, &root().join(folder), &["--release"]);
    }
    // Not their tests: the models include files of the product, whose unit tests need the product.
    let models = root().join("interleavings");
    clippy(steps, "interleavings, lints", &models, &["--release"]);
    steps.command("fuzzing", xtask(&["fuzz", "--time", "30m", "--jobs", "2"]));
    steps.command("planted mistakes", xtask(&["planted"]));
}

/// Lints programs, libraries, tests and examples.
fn lint(steps: &Steps, name: &str, folder: &Path, options: &[&str]) {
    clippy(steps, name, folder, &[options, &["--all-targets"]].concat());
}

fn clippy(steps: &Steps, name: &str, folder: &Path, options: &[&str]) {
    let mut lints = cargo_in(folder, &["clippy"]);
    lints.args(options).args(["--", "-D", "warnings"]);
    steps.command(name, lints);
}

/// This program with another command. Its file may have been replaced by a build.
fn xtask(arguments: &[&str]) -> Command {
    let mut xtask = Command::new("/proc/self/exe");
    xtask.args(arguments);
    xtask
}
