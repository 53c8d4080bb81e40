//! `cargo xtask mutants`: cargo-mutants on what a change touches.
//!
//! It changes one function or operator at a time, and runs the tests of its crate. What no test finds is for a person to
//! look at: some changes make no difference. So this is a command, and not a part of `cargo xtask ci`. `.cargo/mutants.toml` says what is
//! left out, since no test of its own crate could find it.

use std::process::{Command, ExitCode};

use crate::environment::remove_settings_of_contributor;
use crate::{cargo, root};

const USAGE: &str = "\
usage: cargo xtask mutants [BASE] [-- OPTION…]

Lets cargo-mutants change the lines that differ from the commit BASE, one place at a time, and prints the changes that no test finds;
reports are in target/mutants/mutants.out. Without BASE, it is where the branch left origin/main, or the last commit but one.

What comes behind -- are more options of cargo-mutants, such as --list. The exit status is its own: 0 if every change was found, 2 if one
was not, 3 if tests ran out of time.
";

/// `cargo xtask mutants …`.
pub(crate) fn mutants(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.collect();
    let mut parts = arguments.splitn(2, |argument| argument == "--");
    let base = parts.next().unwrap_or_default();
    let options = parts.next().unwrap_or_default();
    let done = match base {
        [] => default_base().and_then(|base| run(&base, options)),
        [base] if !base.starts_with('-') => run(base, options),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn default_base() -> Result<String, String> {
    let head = git(&["rev-parse", "HEAD"])?;
    let left_main = git(&["merge-base", "HEAD", "origin/main"]);
    Ok(match left_main {
        Ok(commit) if commit != head => commit.trim().to_owned(),
        _ => "HEAD~1".to_owned(),
    })
}

fn run(base: &str, options: &[String]) -> Result<u8, String> {
    let version = cargo(&["mutants", "--version"]).output();
    if !version.is_ok_and(|output| output.status.success()) {
        return Err("cargo-mutants is missing: cargo install --locked cargo-mutants".to_owned());
    }
    let difference = git(&["diff", base])?;
    let folder = guest::target_dir().join("mutants");
    let file = folder.join("change.diff");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&file, difference))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    let mut mutants = cargo(&["mutants", "--in-diff"]);
    mutants.arg(file).arg("--output").arg(folder).args(options);
    remove_settings_of_contributor(&mut mutants);
    let status = mutants.status();
    let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.ok_or_else(|| format!("cargo-mutants: {status}"))
}

fn git(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root())
        .output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
