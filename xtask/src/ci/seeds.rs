//! Seeds of the simulator: a fixed range, and some that no run has had before.

use super::Extent;
use super::commit_seed;
use super::steps::Steps;
use crate::sim;

/// The same each time, and a number instead of a time, so that the result depends neither on the day nor on how fast the machine is.
const FIXED: u64 = 20_000;

/// Runs both ranges.
pub(super) fn run(steps: &Steps, extent: Extent) {
    let fixed = sim::simulator(&["--seeds", &FIXED.to_string()]);
    steps.command("simulation, fixed seeds", fixed);
    let name = "simulation, seeds of the commit";
    let time = match extent {
        Extent::Quick => "30s",
        Extent::Full => "15m",
    };
    let first = commit_seed::of_commit().to_string();
    eprintln!(
        "   {name}: repeat one with 'cargo xtask sim --seed N', all with '--first {first} --time {time}'"
    );
    steps.command(name, sim::simulator(&["--first", &first, "--time", time]));
}
