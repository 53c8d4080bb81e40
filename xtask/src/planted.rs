//! `cargo xtask planted`: mistakes on purpose, each of which a test must find.
//!
//! A mistake is a patch below `planted` whose text names a command (`Finds: COMMAND`) that must fail with it. All of them are
//! built at once, in a copy of the source, and an environment variable switches one on: a mistake costs a run of its command, and no
//! build. Each command has to pass without any mistake first: a test that fails anyway finds nothing.

mod finder;
mod outcome;
mod switched;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::copy::SourceCopy;
use crate::patches::{self, Patch};
use crate::root;
use finder::Finders;
use outcome::{Outcome, Run};

const USAGE: &str = "\
usage: cargo xtask planted [--list] [NAME | FOLDER…]

Builds the product with all planted mistakes (planted/FOLDER/NAME.patch), and runs the test that must find each, with this
mistake switched on. Without names, all of them; of a folder, all that are in it.

  --list   print the mistakes and plant none
  --help   print this

What tests print is in target/planted/logs. The exit status is 0 if every mistake was found, 1 if one survived, or if its test fails
without it, 2 for a wrong option. A test that cannot run on this machine is reported, as in cargo test.
";

/// `cargo xtask planted …`.
pub(crate) fn planted(arguments: impl Iterator<Item = String>) -> ExitCode {
    let (options, names): (Vec<String>, Vec<String>) =
        arguments.partition(|argument| argument.starts_with('-'));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let done = match options[..] {
        [] => choose(&names).and_then(|chosen| run(&chosen)),
        ["--list"] => choose(&names).map(|chosen| list(&chosen)),
        ["--help" | "-h"] => {
            eprint!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(all_found) => crate::exit_code(all_found),
        Err(error) => {
            eprintln!("planted: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<Vec<Patch>, String> {
    patches::all(&root().join("planted"))
}

/// Those that have one of the names or are in one of the folders; all if there is none.
fn choose(names: &[String]) -> Result<Vec<Patch>, String> {
    let all = all()?;
    let is_meant = |patch: &Patch, name: &str| {
        let whole = format!("/{}/", patch.name);
        whole.ends_with(&format!("/{name}/")) || whole.starts_with(&format!("/{name}/"))
    };
    for name in names {
        if !all.iter().any(|patch| is_meant(patch, name)) {
            return Err(format!("there is no mistake and no folder '{name}'"));
        }
    }
    let is_chosen =
        |patch: &Patch| names.is_empty() || names.iter().any(|name| is_meant(patch, name));
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn list(chosen: &[Patch]) -> bool {
    for patch in chosen {
        eprintln!("{:<70} {}", patch.name, patch.summary());
    }
    true
}

/// The changed files of the source, with all mistakes. What cannot be planted is in the list of errors.
fn changed_files(all: &[Patch]) -> Result<(BTreeMap<PathBuf, String>, Vec<String>), String> {
    let mut errors = Vec::new();
    let mut mistakes: BTreeMap<PathBuf, Vec<(&str, String)>> = BTreeMap::new();
    for patch in all {
        match patch.changed_files() {
            Ok(files) => {
                for (path, text) in files {
                    mistakes.entry(path).or_default().push((&patch.name, text));
                }
            }
            Err(error) => errors.push(format!("{}: {error}", patch.path.display())),
        }
    }
    let mut changed = BTreeMap::new();
    for (path, texts) in mistakes {
        let source = std::fs::read_to_string(root().join(&path));
        let source = source.map_err(|error| format!("{}: {error}", path.display()))?;
        let texts: Vec<_> = texts.iter().map(|(name, text)| (*name, &**text)).collect();
        match switched::with_mistakes(&source, &texts) {
            Ok(combined) => drop(changed.insert(path, combined)),
            Err(error) => errors.push(format!("{}: {error}", path.display())),
        }
    }
    Ok((changed, errors))
}

/// Whether all patches fit the source as it is, those of experiments included: a part of `cargo xtask ci`.
pub(crate) fn check_patches() -> Result<(), String> {
    let all = all()?;
    let (_, mut errors) = changed_files(&all)?;
    for patch in &all {
        if let Err(error) = finder::command_of(patch) {
            errors.push(format!("{}: {error}", patch.path.display()));
        }
    }
    errors.extend(patches::errors_of_experiments()?);
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors.join("\n")),
    }
}

/// Whether every mistake was found.
fn run(chosen: &[Patch]) -> Result<bool, String> {
    let all = all()?;
    let (changed, errors) = changed_files(&all)?;
    if !errors.is_empty() {
        return Err(errors.join("\n"));
    }
    let copy = SourceCopy::new("planted")?;
    copy.write(&changed)?;
    let started = Instant::now();
    let finders = Finders::build(&copy, &all)?;
    eprintln!("planted: built in {:.0} s", started.elapsed().as_secs_f64());

    let commands: BTreeSet<&str> = chosen.iter().flat_map(finder::command_of).collect();
    let commands: Vec<&str> = commands.into_iter().collect();
    let without = side_by_side(&commands, |command| finders.run(command, None));
    let without: BTreeMap<&str, Run> = commands.iter().copied().zip(without).collect();
    eprintln!(
        "planted: {} commands run without a mistake, {:.0} s since the start",
        commands.len(),
        started.elapsed().as_secs_f64()
    );
    let outcomes = side_by_side(chosen, |patch| {
        let command = finder::command_of(patch).unwrap_or_default();
        let outcome = match without.get(command) {
            Some(without) if without.passed => {
                let with = finders.run(command, Some(&patch.name));
                Outcome::of(without, &with)
            }
            failed => Outcome::FailsWithout(failed.map(Run::finding).unwrap_or_default()),
        };
        eprintln!("{:<70} {outcome}", patch.name);
        outcome
    });
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let (found, not_run) = (count(Outcome::is_found), count(Outcome::is_not_run));
    eprintln!(
        "planted: {found} of {} found, {not_run} not run, in {:.0} s",
        chosen.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(found + not_run == chosen.len())
}

/// Runs something for each item, on as many threads as the machine has processors.
fn side_by_side<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else {
                return results;
            };
            results.push((place, run(item)));
        }
    };
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(|worker| worker.join());
        results
            .flat_map(|results| results.expect("a worker panicked"))
            .collect()
    });
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}
