//! Seeds of the simulator: a fixed range, and some that no run has had before.

use std::process::Command;

use super::Extent;
use super::steps::{Steps, compile_with_clippy};
use crate::{root, sim};

/// The same each time, and a number instead of a time, so that the result depends neither on the day nor on how fast the machine is.
const FIXED: u64 = 20_000;

/// Runs both ranges.
pub(super) fn run(steps: &Steps, extent: Extent) {
    let simulator = |options: &[&str]| {
        let mut simulator = sim::simulator(options);
        // As it was built for its tests.
        compile_with_clippy(&mut simulator);
        simulator
    };
    let fixed = simulator(&["--seeds", &FIXED.to_string()]);
    steps.command("simulation, fixed seeds", fixed);
    let name = "simulation, seeds of the commit";
    let time = match extent {
        Extent::Quick => "30s",
        Extent::Full => "15m",
    };
    let first = of_commit().to_string();
    eprintln!(
        "   {name}: repeat one with 'cargo xtask sim --seed N', all with '--first {first} --time {time}'"
    );
    steps.command(name, simulator(&["--first", &first, "--time", time]));
}

/// A number that differs from commit to commit.
pub(super) fn of_commit() -> u64 {
    seed_of(&commit())
}

/// The commit that is tested, or what stands for it in a source without a repository.
fn commit() -> String {
    let git = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(root())
        .output();
    git.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Its first twelve digits: far from the fixed range, and far from those of other commits.
fn seed_of(commit: &str) -> u64 {
    let digits = commit.get(..12).unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or(FIXED) | 1 << 40
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_a_commit_are_its_own() {
        let (one, other) = (seed_of("e5bef7f71234aaaa"), seed_of("06312f741234aaaa"));
        assert!(one > FIXED && other > FIXED && one != other);
        assert!(seed_of("") > FIXED);
    }
}
