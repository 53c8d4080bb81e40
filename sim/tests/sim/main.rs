//! The simulator: a seed is replayed exactly, and what it has once found. That it finds mistakes is shown by `cargo xtask planted`.

mod findings;

use sim::plan::Plan;
use sim::run::run;
use sim::trace::Trace;

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
