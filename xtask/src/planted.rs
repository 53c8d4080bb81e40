//! `cargo xtask planted`: mistakes on purpose, each of which a test must find.
//!
//! A mistake is a patch in `planted` whose text names a command (`Finds: COMMAND`) that must fail with it. One at a time is
//! applied to a copy of the source, which shares one build folder. The command has to pass without any mistake
//! first: a test that fails anyway finds nothing.

mod options;
mod outcome;

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::copy::SourceCopy;
use crate::patches::{self, Patch};
use options::{Action, Options, USAGE};
use outcome::{Outcome, Row, classify, table};

/// `cargo xtask planted …`.
pub(crate) fn planted(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(Action::Run(options)) => options,
        Ok(Action::Help) => {
            eprint!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprint!("planted: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(all_found) => crate::exit_code(all_found),
        Err(error) => {
            eprintln!("planted: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every mistake was found.
fn run(options: &Options) -> Result<bool, String> {
    let all = patches::all(&options.folder)?;
    let chosen = options.choose(&all)?;
    if options.list {
        for patch in chosen {
            eprintln!("{:<48} {}", patch.name, patch.summary());
        }
        return Ok(true);
    }
    let copy = SourceCopy::new("planted")?;
    let mut without: BTreeMap<&str, Outcome> = BTreeMap::new();
    for command in chosen.iter().filter_map(|patch| patch.field("Finds")) {
        if !without.contains_key(command) {
            eprintln!("planted: without a mistake: {command}");
            let outcome = execute(&copy, command, options.limit)?;
            without.insert(command, outcome);
        }
    }
    let mut rows = Vec::new();
    for patch in chosen {
        let begin = Instant::now();
        let outcome = plant(&copy, patch, &without, options.limit)?;
        let took = begin.elapsed();
        eprintln!(
            "planted: {}: {outcome} ({:.0} s)",
            patch.name,
            took.as_secs_f64()
        );
        rows.push(Row {
            name: patch.name.clone(),
            outcome,
            took,
        });
    }
    copy.reset()?;
    let all_found = rows.iter().all(|row| row.outcome.is_found());
    eprint!("{}", table(&rows));
    Ok(all_found)
}

fn plant(
    copy: &SourceCopy,
    patch: &Patch,
    without: &BTreeMap<&str, Outcome>,
    limit: Duration,
) -> Result<Outcome, String> {
    let Some(command) = patch.field("Finds") else {
        return Ok(Outcome::NoCommand);
    };
    match without.get(command) {
        Some(Outcome::Survived) => {}
        Some(failed) => return Ok(Outcome::FailsWithout(failed.to_string())),
        None => return Ok(Outcome::NoCommand),
    }
    if let Err(error) = copy.apply(patch) {
        return Ok(Outcome::DoesNotApply(error));
    }
    execute(copy, command, limit)
}

/// Runs a command in the copy, with all it prints in a file.
fn execute(copy: &SourceCopy, command: &str, limit: Duration) -> Result<Outcome, String> {
    let log = copy.build().join("planted.log");
    let io = |error| format!("{}: {error}", log.display());
    let output = File::create(&log).map_err(io)?;
    // It ends all that the command has started, also what hangs in a system call.
    let mut timeout = Command::new("timeout");
    timeout.args(["--kill-after=5", &limit.as_secs().to_string(), "sh", "-c"]);
    timeout.arg(command).current_dir(copy.folder());
    timeout.env("CARGO_TARGET_DIR", copy.build());
    // They are of another build.
    timeout.env_remove("BLOCKPLANE_BIN");
    timeout.env_remove("BLOCKPLANE_BENCH_BIN");
    // Of the cargo that has started us: the command's own packages are others.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR" {
            timeout.env_remove(name);
        }
    }
    timeout.stdin(Stdio::null());
    timeout
        .stdout(output.try_clone().map_err(io)?)
        .stderr(output);
    let status = timeout.status();
    let status = status.map_err(|error| format!("cannot start timeout: {error}"))?;
    let printed = std::fs::read(&log).map_err(io)?;
    Ok(classify(
        status.code(),
        &String::from_utf8_lossy(&printed),
        limit,
    ))
}
