//! The command line.

use std::time::Duration;

/// What can be said.
pub const USAGE: &str = "\
usage: cargo xtask sim [OPTIONS]

  --seed N        run this seed, and say what happened; what is found is made small
  --seeds N       run so many seeds (default: 10000)
  --first N       begin with this one (default: 1)
  --time TIME     stop after that time (10s, 5m, 8h), whatever --seeds says
  --jobs N        so many at the same time (default: 1)
  --no-shrink     tell a finding as it is
";

/// What was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// One seed only.
    pub seed: Option<u64>,
    /// The first of several.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// For how long at most.
    pub time: Option<Duration>,
    /// Threads.
    pub jobs: u64,
    /// Findings are made small.
    pub shrink: bool,
}

impl Options {
    /// From words.
    ///
    /// # Errors
    /// The option that is wrong, without its value, or unknown.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut seeds, mut time) = (None, None);
        let mut options = Options {
            seed: None,
            first: 1,
            seeds: 10_000,
            time: None,
            jobs: 1,
            shrink: true,
        };
        while let Some(word) = words.next() {
            if word == "--no-shrink" {
                options.shrink = false;
                continue;
            }
            let value = words.next().unwrap_or_default();
            let number = value.parse().ok();
            let wrong = || format!("{word} {value}: no such option or value");
            match word.as_str() {
                "--seed" => options.seed = Some(number.ok_or_else(wrong)?),
                "--seeds" => seeds = Some(number.ok_or_else(wrong)?),
                "--first" => options.first = number.ok_or_else(wrong)?,
                "--time" => time = Some(seconds(&value).ok_or_else(wrong)?),
                "--jobs" => options.jobs = number.ok_or_else(wrong)?,
                _ => return Err(wrong()),
            }
        }
        options.time = time;
        // Who says only for how long wants as many as there is time for.
        let unlimited = time.map(|_| u64::MAX);
        options.seeds = seeds.or(unlimited).unwrap_or(options.seeds);
        Ok(options)
    }
}

/// A number with s, m or h.
fn seconds(value: &str) -> Option<Duration> {
    let (number, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let seconds = number.parse::<u64>().ok()?.checked_mul(seconds)?;
    Some(Duration::from_secs(seconds))
}
