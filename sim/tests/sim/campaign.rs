//! Seeds of the simulator: nothing is found, everything happens, and a finding is replayed and made small. That it finds
//! mistakes is shown by `cargo xtask planted`.

use sim::campaign::Campaign;
use sim::plan::Plan;
use sim::run::run;
use sim::shrink::shrink;
use sim::trace::Trace;

#[test]
fn campaign_finds_nothing_and_covers_all_events() {
    let campaign = Campaign {
        first: 1,
        seeds: 7000,
        time: None,
        jobs: 1,
    };
    let results = campaign.run(|_| ());
    assert_eq!(results.found, None);
    assert_eq!(results.seeds, 7000);
    for (name, count) in results.seen.counts() {
        assert!(count > 50, "{name}: {count}");
    }
}

#[test]
fn a_seed_is_replayed_exactly() {
    for seed in 1..60 {
        let lines = || {
            let trace = Trace::kept();
            let ran = run(&Plan::of(seed), trace.clone());
            (ran, trace.lines())
        };
        assert_eq!(lines(), lines(), "seed {seed}");
    }
}

/// As if each run were wrong in which a daemon is killed after the first answer.
#[test]
fn finding_made_small_still_fails() {
    let fails = |plan: &Plan| {
        let seen = run(plan, Trace::default()).expect("nothing else is found");
        seen.kills > 0 && seen.answered > 0
    };
    let is_long = |plan: &Plan| plan.events.len() > 50;
    let mut plans = (1..).map(Plan::of).filter(is_long);
    let plan = plans.find(fails).expect("a finding");
    let small = shrink(&plan, fails);
    assert!(fails(&small), "{:?}", small.events);
    assert!(small.events.len() <= 4, "{:?}", small.events);
}
