//! `cargo xtask experiments [NAME…]`: builds blockplane, and once more with each patch of `experiments/patches` that the experiments
//! compare, and runs `blockplane-experiments` with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::copy::SourceCopy;
use crate::patches::{self, Patch};
use crate::{cargo, cargo_in};

const USAGE: &str = "\
usage: cargo xtask experiments [--profile PROFILE] [NAME…] [-- OPTION…]

Builds blockplane as it is, and once more with each patch of experiments/patches that an experiment compares, and prints the
tables of these experiments: without a NAME those of all published results. What comes behind -- are options of
blockplane-experiments: `cargo xtask experiments -- --help`.

  --profile PROFILE   how cargo builds: release (the default), or dev, for a trial
";

/// `cargo xtask experiments …`.
pub(crate) fn experiments(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let (mut profile, mut names) = (Some("release".to_owned()), Vec::new());
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--" => break,
            "--profile" => profile = arguments.next(),
            option if option.starts_with('-') => {
                eprint!("{USAGE}");
                return ExitCode::from(2);
            }
            _ => names.push(argument),
        }
    }
    let options: Vec<String> = arguments.collect();
    match run(&profile.unwrap_or_default(), &names, &options) {
        Ok(passed) => crate::exit_code(passed),
        Err(error) => {
            eprintln!("experiments: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(profile: &str, names: &[String], options: &[String]) -> Result<bool, String> {
    let mut build = cargo(&["build", "--bins", "--profile", profile]);
    build.args(["--package", "blockplane", "--package", "experiments"]);
    if !build.status().is_ok_and(|status| status.success()) {
        return Err("the programs cannot be built".to_owned());
    }
    let built = guest::target_dir().join(folder_of(profile));
    let mut measure = Command::new(built.join("blockplane-experiments"));
    measure.args(names).args(options);
    let is_help = options.iter().any(|option| option == "--help");
    for patch in patches::experiments()? {
        let experiment = patch.field("Experiment").unwrap_or_default();
        if !is_help && (names.is_empty() || names.iter().any(|name| name == experiment)) {
            let program = patched(&patch, profile)?;
            measure.arg("--patched");
            measure.arg(format!("{}={}", patch.name, program.display()));
        }
    }
    let status = measure.status();
    let status = status.map_err(|error| format!("cannot start {measure:?}: {error}"))?;
    Ok(status.success())
}

/// Builds blockplane in a copy of the source with this patch.
fn patched(patch: &Patch, profile: &str) -> Result<PathBuf, String> {
    let copy = SourceCopy::new("experiments")?;
    let applied = copy.apply(patch);
    applied.map_err(|error| format!("{} does not apply: {error}", patch.path.display()))?;
    eprintln!(
        "experiments: building with {}: {}",
        patch.name,
        patch.summary()
    );
    let mut build = cargo_in(copy.folder(), &["build", "--package", "blockplane"]);
    build.args(["--profile", profile]);
    build.env("CARGO_TARGET_DIR", copy.build());
    if !build.status().is_ok_and(|status| status.success()) {
        return Err(format!("{} cannot be built", patch.path.display()));
    }
    // Out of the way of the next patch.
    let product = copy.build().join(folder_of(profile)).join("blockplane");
    let kept = copy.build().join("patched").join(&patch.name);
    copy_program(&product, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    Ok(kept)
}

fn copy_program(from: &Path, to: &Path) -> std::io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).map(drop)
}

/// Where cargo puts what it builds.
fn folder_of(profile: &str) -> &str {
    match profile {
        "dev" => "debug",
        other => other,
    }
}
