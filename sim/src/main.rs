//! `cargo xtask sim`: runs seeds, and reports findings.
#![allow(clippy::print_stdout)] // what it is asked for

use std::process::ExitCode;

use sim::campaign::run_seeds;
use sim::options::{Options, USAGE};
use sim::plan::Plan;
use sim::run::run;
use sim::shrink::shrink;
use sim::trace::Trace;

/// After so many seeds each event has happened more often than `COMMON` times, or the simulator has lost it. Not checked where time
/// decides how many seeds there are.
const MANY: u64 = 7000;
const COMMON: u64 = 50;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(words.into_iter()) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("sim: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let passed = match options.seed {
        Some(seed) => one(seed, &options),
        None => many(&options),
    };
    match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Runs one seed, and says what happened, a finding as short as it can be; whether nothing was found.
fn one(seed: u64, options: &Options) -> bool {
    let mut plan = Plan::of(seed);
    let fails = |plan: &Plan| run(plan, Trace::default()).is_err();
    if options.shrink && fails(&plan) {
        plan = shrink(&plan, fails);
    }
    let trace = Trace::kept();
    let ran = run(&plan, trace.clone());
    println!("{:#?}\n{}", plan.config, trace.lines().join("\n"));
    match &ran {
        Ok(seen) => println!("nothing was found: {seen:?}"),
        Err(found) => {
            let events = plan.events.len();
            println!(
                "\nagain: cargo xtask sim --seed {seed}\nseed {seed}, {events} events: {found}"
            );
        }
    }
    ran.is_ok()
}

/// Runs many, and tells the first finding; whether nothing was found.
fn many(options: &Options) -> bool {
    let results = run_seeds(options);
    let (seeds, took) = (results.seeds, results.took.as_secs_f64());
    println!("{seeds} seeds in {took:.0} s: {:?}", results.seen);
    if let Some(seed) = results.found {
        return one(seed, options);
    }
    let rare: Vec<_> = results.seen.rarer_than(COMMON).collect();
    if options.time.is_none() && seeds >= MANY && !rare.is_empty() {
        println!("{seeds} seeds have hardly any of these events: {rare:?}");
        return false;
    }
    true
}
