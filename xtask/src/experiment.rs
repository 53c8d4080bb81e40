//! `cargo xtask experiment NAME…`: blockplane as it is against copies of it that were built with a patch.
//!
//! A patch in `experiments/patches` takes one mechanism out, and names the command of the measuring program that
//! compares both. The servers of one measurement are loaded in turn.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::copy::SourceCopy;
use crate::patches::{self, Patch};
use crate::{cargo, cargo_in};

const USAGE: &str = "\
usage: cargo xtask experiment [--profile PROFILE] NAME… [-- OPTION…]
       cargo xtask experiment --list

Builds blockplane as it is, and once more with each patch of that name, and compares them. NAME is a patch of
experiments/patches, or a command of the measuring program, for all patches that it compares. What comes
behind -- are options of that command: see --help there.

  --profile PROFILE   how cargo builds: release (the default), or dev, for a trial
  --list              print the patches, and which command compares them
  --help              print this

The exit status is 0 if everything was measured, 1 for an error, 2 for a wrong option.
";

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    profile: Option<String>,
    names: Vec<String>,
    /// For the measuring program.
    passed_on: Vec<String>,
    list: bool,
    help: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            match &*argument {
                "--profile" => {
                    let profile = arguments.next();
                    options.profile = Some(profile.ok_or("--profile needs a value")?);
                }
                "--list" => options.list = true,
                "--help" | "-h" => options.help = true,
                "--" => options.passed_on = arguments.by_ref().collect(),
                option if option.starts_with('-') => {
                    return Err(format!("unknown option {option}"));
                }
                _ => options.names.push(argument),
            }
        }
        if options.names.is_empty() && !options.list && !options.help {
            return Err("name an experiment".to_owned());
        }
        Ok(options)
    }

    fn profile(&self) -> &str {
        self.profile.as_deref().unwrap_or("release")
    }
}

/// `cargo xtask experiment …`.
pub(crate) fn experiment(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprint!("experiment: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if options.help {
        eprint!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(passed) => crate::exit_code(passed),
        Err(error) => {
            eprintln!("experiment: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool, String> {
    let all = patches::experiments()?;
    if options.list {
        for patch in &all {
            let command = patch.field("Experiment").unwrap_or("?");
            eprintln!("{:<20} {command:<16} {}", patch.name, patch.summary());
        }
        return Ok(true);
    }
    let (command, chosen) = choose(&all, &options.names)?;
    let profile = options.profile();
    let mut build = cargo(&["build", "--profile", profile]);
    build.args(["--package", "blockplane", "--package", "bench", "--bins"]);
    if !build.status().is_ok_and(|status| status.success()) {
        return Err("blockplane cannot be built".to_owned());
    }
    let built = guest::target_dir().join(folder_of(profile));
    let mut measure = Command::new(built.join("blockplane-bench"));
    measure.arg(command);
    measure.arg("--server").arg(built.join("blockplane"));
    for patch in chosen {
        let what = ["build", "--package", "blockplane"];
        let program = patched(patch, &what, profile, "blockplane")?;
        let named = format!("{}={}", patch.name, program.display());
        measure.args(["--patched", &named]);
    }
    let status = measure.args(&options.passed_on).status();
    let status = status.map_err(|error| format!("cannot start {measure:?}: {error}"))?;
    Ok(status.success())
}

/// The patches that were named, and the one command that compares them.
fn choose<'p>(all: &'p [Patch], names: &[String]) -> Result<(&'p str, Vec<&'p Patch>), String> {
    let mut chosen: Vec<&Patch> = Vec::new();
    for name in names {
        let of_command = all
            .iter()
            .filter(|patch| patch.field("Experiment") == Some(name));
        let of_command: Vec<&Patch> = of_command.collect();
        match of_command.is_empty() {
            true => chosen.push(patches::named(all, name)?),
            false => chosen.extend(of_command),
        }
    }
    let command = |patch: &Patch| -> Result<&'p str, String> {
        let found = all.iter().find(|other| other.name == patch.name);
        let command = found.and_then(|patch| patch.field("Experiment"));
        command.ok_or_else(|| format!("{}: no line 'Experiment: …'", patch.path.display()))
    };
    let mut common = None;
    for patch in &chosen {
        let command = command(patch)?;
        if command == "instructions" {
            return Err(format!(
                "{}: compared by cargo xtask instructions",
                patch.name
            ));
        }
        if common
            .replace(command)
            .is_some_and(|other| other != command)
        {
            return Err(format!(
                "{} is compared by another command than those before it",
                patch.name
            ));
        }
    }
    let command = common.ok_or("name an experiment")?;
    Ok((command, chosen))
}

/// Builds something in a copy with this patch: `what` are cargo's arguments, `product` is its place below the
/// profile's folder.
pub(crate) fn patched(
    patch: &Patch,
    what: &[&str],
    profile: &str,
    product: &str,
) -> Result<PathBuf, String> {
    let copy = SourceCopy::new("experiments")?;
    let applied = copy.apply(patch);
    applied.map_err(|error| format!("{} does not apply: {error}", patch.path.display()))?;
    eprintln!(
        "experiment: building with {}: {}",
        patch.name,
        patch.summary()
    );
    let mut build = cargo_in(copy.folder(), what);
    build.args(["--profile", profile]);
    build.env("CARGO_TARGET_DIR", copy.build());
    if !build.status().is_ok_and(|status| status.success()) {
        return Err(format!("{} cannot be built", patch.path.display()));
    }
    let product = copy.build().join(folder_of(profile)).join(product);
    // Out of the way of the next patch.
    let name = product.file_name().unwrap_or_default();
    let kept = copy.build().join("patched").join(&patch.name).join(name);
    keep(&product, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    Ok(kept)
}

fn keep(product: &Path, kept: &Path) -> std::io::Result<()> {
    if let Some(folder) = kept.parent() {
        fs::create_dir_all(folder)?;
    }
    // One that runs cannot be written to.
    let _ = fs::remove_file(kept);
    fs::copy(product, kept).map(drop)
}

fn folder_of(profile: &str) -> &str {
    match profile {
        "dev" => "debug",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = String> {
        line.split_whitespace().map(str::to_owned)
    }

    #[test]
    fn options_behind_two_dashes_are_passed_on() {
        let options = Options::parse(words("a --profile dev b -- --null --list")).expect("right");
        assert_eq!(options.names, ["a", "b"]);
        assert_eq!(options.profile(), "dev");
        assert_eq!(options.passed_on, ["--null", "--list"]);
        assert!(!options.list);
        for wrong in ["", "--profile", "a --null"] {
            assert!(Options::parse(words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_command_stands_for_all_patches_that_it_compares() {
        let all = patches::experiments().expect("patches");
        let choose = |line: &str| {
            let names: Vec<String> = words(line).collect();
            choose(&all, &names).map(|(command, chosen)| {
                let names = chosen.iter().map(|patch| patch.name.clone());
                (command.to_owned(), names.collect::<Vec<_>>())
            })
        };
        let both = ["adaptive-batch", "pile-up"].map(str::to_owned).to_vec();
        assert_eq!(choose("batch-limit"), Ok(("batch-limit".to_owned(), both)));
        let one = vec!["late-notify".to_owned()];
        assert_eq!(choose("late-notify"), Ok(("notify".to_owned(), one)));
        for wrong in ["late-notify pile-up", "no-such-patch", "without-statistics"] {
            assert!(choose(wrong).is_err(), "{wrong}");
        }
    }
}
