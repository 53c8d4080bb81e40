//! `cargo xtask mutants`: cargo-mutants on the code whose mistakes lose data, for a limited time.
//!
//! It changes one function or operator at a time, and runs the tests of its package. What no test finds is for a person to
//! look at: some changes make no difference. So this is a command, and not a part of `cargo xtask ci`.

use std::process::{Command, ExitCode};

use crate::cargo;

const USAGE: &str = "\
usage: cargo xtask mutants [--minutes N] [-- OPTION…]

Lets cargo-mutants change rings, the virtio-blk device and the recovery of queues, in a random order, and prints
changes that no test finds. Installs cargo-mutants if it is missing. Its reports are in target/mutants/mutants.out.

  --minutes N   how long it may take (default 30)
  --list        print what would be changed
  --help        print this

What comes behind -- are more options of cargo-mutants. The exit status is its own: 0 if every change was found, 2 if one
was not, 3 if tests ran out of time; 124 when the time was over, which says nothing of what was found until then.
";

/// Where it makes mistakes.
const FILES: [&str; 7] = [
    "crates/virtqueue/src/**/*.rs",
    "crates/virtio-blk/src/**/*.rs",
    "crates/iothread/src/queue_runner/queue_commands.rs",
    "crates/iothread/src/device.rs",
    "crates/iothread/src/device/*.rs",
    "crates/iothread/src/vring*.rs",
    "crates/iothread/src/vring/*.rs",
];

/// What only tests use.
const NOT: [&str; 2] = ["**/testing/**", "**/testing.rs"];

/// How long the tests of one mistake may take: several times what they need.
const TEST_SECONDS: &str = "180";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    minutes: u32,
    list: bool,
    passed_on: Vec<String>,
}

impl Options {
    /// `None`: help.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Options {
            minutes: 30,
            list: false,
            passed_on: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            match &*argument {
                "--minutes" => {
                    let minutes = arguments.next().and_then(|minutes| minutes.parse().ok());
                    let minutes = minutes.filter(|minutes| *minutes > 0);
                    options.minutes = minutes.ok_or("--minutes needs a number above 0")?;
                }
                "--list" => options.list = true,
                "--help" | "-h" => return Ok(None),
                "--" => options.passed_on = arguments.by_ref().collect(),
                other => return Err(format!("unknown option {other}")),
            }
        }
        Ok(Some(options))
    }
}

/// `cargo xtask mutants …`.
pub(crate) fn mutants(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(Some(options)) => options,
        Ok(None) => {
            eprint!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprint!("mutants: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<u8, String> {
    if !is_installed() {
        eprintln!("mutants: installing cargo-mutants");
        let installed = cargo(&["install", "--locked", "cargo-mutants"]).status();
        if !installed.is_ok_and(|status| status.success()) {
            return Err("cargo-mutants cannot be installed".to_owned());
        }
    }
    let mut mutants = cargo(&["mutants"]);
    for file in FILES {
        mutants.args(["--file", file]);
    }
    for file in NOT {
        mutants.args(["--exclude", file]);
    }
    if options.list {
        mutants.arg("--list");
    } else {
        mutants.args(["--shuffle", "--timeout", TEST_SECONDS, "--output"]);
        mutants.arg(guest::target_dir().join("mutants"));
    }
    mutants.args(&options.passed_on);
    let mut limited = limited(&mutants, options.minutes);
    let status = limited.status();
    let status = status.map_err(|error| format!("cannot start timeout: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.ok_or_else(|| format!("cargo-mutants: {status}"))
}

fn is_installed() -> bool {
    let version = cargo(&["mutants", "--version"]).output();
    version.is_ok_and(|output| output.status.success())
}

/// The command, with an end: as by Ctrl-C, at which it still says what it has found.
fn limited(command: &Command, minutes: u32) -> Command {
    let mut limited = Command::new("timeout");
    limited.args(["--signal=INT", "--kill-after=60", &format!("{minutes}m")]);
    limited.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    limited
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_behind_two_dashes_are_passed_on() {
        let expected = Options {
            minutes: 5,
            list: false,
            passed_on: vec!["--re".to_owned(), "avail".to_owned()],
        };
        assert_eq!(parse("--minutes 5 -- --re avail"), Ok(Some(expected)));
        for wrong in ["--minutes", "--minutes 0", "--re avail"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
