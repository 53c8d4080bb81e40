//! `cargo xtask ci`: what every change must pass, or with `--full` everything that there is, and tables of where the time went.
//!
//! Two lanes run side by side. One builds the product and runs its test programs, which wait for much of their time: for deadlines,
//! processes, disks. The other one meanwhile builds and runs what is compiled in other ways (the simulator, models of threads,
//! the interoperability suite), then the lints. A failing step does not hide what the others would report; a step whose input could
//! not be built counts as failed.

mod missing;
mod output;
mod programs;
mod repeat;
mod seeds;
mod steps;
mod time_limit;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::{cargo, cargo_in, planted, root, tidy};
use programs::TestProgram;
use steps::Steps;

const USAGE: &str = "\
usage: cargo xtask ci [--full]

  --full  also what is not run for each change: tests marked 'full run only', all planted mistakes, fuzzing, and more seeds
          of the simulator
";

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// What every change must pass.
    Quick,
    /// Everything.
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
        scope.spawn(|| product(&steps, built));
        scope.spawn(|| {
            let interop = compiled_in_other_ways(&steps, extent);
            after_the_product(&steps, interop, is_built);
        });
    });
    if extent == Extent::Full {
        full(&steps);
    }
    let (summary, passed) = steps.summary();
    eprint!("{summary}");
    crate::exit_code(passed)
}

/// The product's tests. Sends whether they were built.
fn product(steps: &Steps, built: Sender<bool>) {
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

/// What is compiled with other features or other dependencies than the product. Returns the programs of the interoperability suite,
/// which need the product.
fn compiled_in_other_ways(steps: &Steps, extent: Extent) -> Option<Vec<TestProgram>> {
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

/// What waits for the build of the product: for its program, or for cargo's lock.
fn after_the_product(steps: &Steps, interop: Option<Vec<TestProgram>>, is_built: Receiver<bool>) {
    let is_built = is_built.recv().unwrap_or(false);
    steps.tests("interoperability suite", interop.filter(|_| is_built));
    // Also the simulator, and so the product with the simulator's seams: half the time of one run for each.
    lint(steps, "lints", &root(), &["--workspace"]);
}

/// What is run before a release only.
fn full(steps: &Steps) {
    let traced = ["--package", "iothread", "--features", "latency-trace"];
    lint(steps, "latency trace, lints", &root(), &traced);
    let mut tests = cargo(&["test", "--lib"]);
    tests.args(traced);
    steps.command("latency trace, tests", tests);
    let interop = root().join("interop");
    lint(steps, "interoperability suite, lints", &interop, &[]);
    lint(
        steps,
        "fuzzing, lints",
        &root().join("fuzz"),
        &["--release"],
    );
    steps.command("fuzzing", xtask(&["fuzz", "--time", "30m", "--jobs", "2"]));
    steps.command("planted mistakes", xtask(&["planted"]));
}

fn lint(steps: &Steps, name: &str, folder: &Path, options: &[&str]) {
    let mut lints = cargo_in(folder, &["clippy", "--all-targets"]);
    lints.args(options).args(["--", "-D", "warnings"]);
    steps.command(name, lints);
}

/// This program with another command. Its file may have been replaced by a build.
fn xtask(arguments: &[&str]) -> Command {
    let mut xtask = Command::new("/proc/self/exe");
    xtask.args(arguments);
    xtask
}
