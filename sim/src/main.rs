//! `cargo xtask sim`: runs seeds, and reports findings.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use sim::campaign::{Campaign, Results};
use sim::options::{Options, USAGE};
use sim::plan::Plan;
use sim::run::run;
use sim::shrink::shrink;
use sim::trace::Trace;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words
        .peek()
        .is_some_and(|word| word == "--help" || word == "-h")
    {
        print(USAGE);
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("sim: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let found = match options.seed {
        Some(seed) => one(seed, &options),
        None => many(&options),
    };
    if found {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn print(text: &str) {
    // Who does not read it does not want it.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Runs one seed, and says what happened; whether something was found.
fn one(seed: u64, options: &Options) -> bool {
    let plan = Plan::of(seed);
    let trace = Trace::kept();
    match run(&plan, trace.clone()) {
        Ok(seen) => {
            print(&format!(
                "{:#?}\n{}\n",
                plan.config,
                trace.lines().join("\n")
            ));
            print(&format!("nothing was found: {seen:?}\n"));
            false
        }
        Err(_) => {
            tell(seed, &plan, options);
            true
        }
    }
}

/// Tells a finding, as short as it can be.
fn tell(seed: u64, plan: &Plan, options: &Options) {
    let plan = if options.shrink {
        shrink(plan, |plan| run(plan, Trace::default()).is_err())
    } else {
        plan.clone()
    };
    let trace = Trace::kept();
    let found = run(&plan, trace.clone());
    let found = found
        .err()
        .unwrap_or_else(|| "nothing: it does not happen again".to_owned());
    print(&format!(
        "{:#?}\n{}\n",
        plan.config,
        trace.lines().join("\n")
    ));
    print(&format!(
        "\nagain: cargo xtask sim --seed {seed}\nseed {seed}, {} events: {found}\n",
        plan.events.len(),
    ));
}

fn many(options: &Options) -> bool {
    let campaign = Campaign {
        first: options.first,
        seeds: options.seeds,
        time: options.time,
        jobs: options.jobs,
    };
    let shown = std::io::stderr().is_terminal();
    let results = campaign.run(|results| {
        if shown {
            eprint!("\r{}", line(results, &campaign));
        }
    });
    if shown {
        eprintln!("\r{}", line(&results, &campaign));
    }
    if options.json {
        print(&json(&results));
    } else {
        print(&format!(
            "{}\n{:?}\n",
            line(&results, &campaign),
            results.seen
        ));
    }
    match &results.found {
        Some((seed, _)) if !options.json => tell(*seed, &Plan::of(*seed), options),
        _ => {}
    }
    results.found.is_some()
}

/// How far it is.
fn line(results: &Results, campaign: &Campaign) -> String {
    let took = results.took.as_secs_f64();
    let of_seeds = results.seeds as f64 / campaign.seeds as f64;
    let of_time = campaign.time.map_or(0.0, |time| took / time.as_secs_f64());
    let done = of_seeds.max(of_time).clamp(0.0, 1.0);
    let width = 30.0;
    let bar: String = (0..30)
        .map(|place| {
            if f64::from(place) < done * width {
                '#'
            } else {
                '.'
            }
        })
        .collect();
    let rate = results.seeds as f64 / took.max(0.001);
    format!(
        "[{bar}] {} seeds, {rate:.0} per second, {took:.0} s",
        results.seeds
    )
}

fn json(results: &Results) -> String {
    let found = match &results.found {
        Some((seed, what)) => format!("{{\"seed\": {seed}, \"what\": {:?}}}", what),
        None => "null".to_owned(),
    };
    let counts = results.seen.counts();
    let counts: String = counts
        .map(|(name, count)| format!("\"{name}\": {count}, "))
        .concat();
    format!(
        "{{\"seeds\": {}, \"seconds\": {:.3}, {counts}\"found\": {found}}}\n",
        results.seeds,
        results.took.as_secs_f64(),
    )
}
