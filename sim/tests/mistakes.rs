//! What the simulator is worth: each mistake that can be planted is found within so many seeds, and nothing without one.

use sim::campaign::Campaign;
use sim::mistakes::MISTAKES;
use sim::plan::Plan;
use sim::run::run;
use sim::shrink::shrink;
use sim::trace::Trace;

/// Seeds at most until a mistake is found.
const SEEDS: u64 = 10_000;

fn campaign(seeds: u64) -> Campaign {
    Campaign {
        first: 1,
        seeds,
        time: None,
        jobs: 1,
        mistake: None,
    }
}

#[test]
fn nothing_is_found_without_a_mistake() {
    let results = campaign(4000).run(|_| ());
    assert_eq!(results.found, None);
    assert_eq!(results.seeds, 4000);
    let seen = results.seen;
    // All of it happens.
    for count in [
        seen.answered,
        seen.kills,
        seen.power_failures,
        seen.stops,
        seen.migrations,
        seen.disabled,
        seen.tables,
        seen.resets,
        seen.upgrades,
        seen.faults.short,
        seen.faults.errors + seen.faults.no_space,
    ] {
        assert!(count > 200, "{seen:?}");
    }
    assert!(seen.faults.jobs > 0, "{seen:?}");
}

#[test]
fn each_mistake_is_found() {
    let mut missed = Vec::new();
    for (name, mistake) in MISTAKES {
        let mistake = Some(mistake);
        let results = Campaign {
            mistake,
            ..campaign(SEEDS)
        }
        .run(|_| ());
        match results.found {
            Some((seed, found)) => println!("{name}: seed {seed}: {found}"),
            None => missed.push(name),
        }
    }
    assert_eq!(missed, Vec::<&str>::new());
}

#[test]
fn a_seed_is_replayed_exactly() {
    for seed in 1..60 {
        let lines = || {
            let trace = Trace::kept();
            let ran = run(&Plan::of(seed), None, trace.clone());
            (ran, trace.lines())
        };
        assert_eq!(lines(), lines(), "seed {seed}");
    }
}

#[test]
fn a_finding_is_made_small_and_is_still_one() {
    let mistake = MISTAKES
        .iter()
        .find(|(name, _)| *name == "merged-tail-lost");
    let mistake = mistake.map(|(_, mistake)| *mistake);
    let results = Campaign {
        mistake,
        ..campaign(SEEDS)
    }
    .run(|_| ());
    let (seed, _) = results.found.expect("a finding");
    let plan = Plan::of(seed);
    let small = shrink(&plan, mistake);
    assert!(run(&small, mistake, Trace::default()).is_err());
    assert!(small.events.len() <= 10, "{:?}", small.events);
    assert!(run(&small, None, Trace::default()).is_ok());
}
