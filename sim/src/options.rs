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
  --json          tell results as JSON
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
    pub jobs: u32,
    /// Findings are made small.
    pub shrink: bool,
    /// As JSON.
    pub json: bool,
}

impl Options {
    /// From words.
    ///
    /// # Errors
    /// What was wrong with them, and what was expected.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            seed: None,
            first: 1,
            seeds: 10_000,
            time: None,
            jobs: 1,
            shrink: true,
            json: false,
        };
        let mut count = None;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "--seed" => options.seed = Some(number(&word, &value()?)?),
                "--seeds" => count = Some(number(&word, &value()?)?),
                "--first" => options.first = number(&word, &value()?)?,
                "--time" => options.time = Some(time(&value()?)?),
                "--jobs" => {
                    let jobs = number(&word, &value()?)?;
                    let jobs = u32::try_from(jobs)
                        .ok()
                        .filter(|jobs| (1..=1024).contains(jobs));
                    options.jobs = jobs.ok_or("--jobs: a number from 1 to 1024 is expected")?;
                }
                "--no-shrink" => options.shrink = false,
                "--json" => options.json = true,
                _ => return Err(format!("{word}: no such option")),
            }
        }
        // Who says only for how long wants as many as there is time for.
        let unlimited = options.time.map(|_| u64::MAX);
        options.seeds = count.or(unlimited).unwrap_or(options.seeds);
        Ok(options)
    }
}

fn number(option: &str, value: &str) -> Result<u64, String> {
    value
        .parse()
        .map_err(|_| format!("{option} {value}: a number is expected"))
}

fn time(value: &str) -> Result<Duration, String> {
    let wrong = || format!("--time {value}: expected a number with s, m or h, as in 90s or 8h");
    let (number, unit) = value
        .split_at_checked(value.len().saturating_sub(1))
        .ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn time_limit_without_a_count_runs_unlimited_seeds() {
        let options = parse("--time 5m").unwrap();
        assert_eq!(options.time, Some(Duration::from_secs(300)));
        assert_eq!(options.seeds, u64::MAX);
        assert_eq!(parse("--time 5m --seeds 7").unwrap().seeds, 7);
        assert_eq!(parse("").unwrap().seeds, 10_000);
    }

    #[test]
    fn invalid_option_is_reported_with_the_expected_form() {
        for (line, expected) in [
            ("--seed x", "a number is expected"),
            ("--seed", "wants a value"),
            ("--time 5", "expected a number with s, m or h"),
            ("--jobs 0", "from 1 to 1024"),
            ("--what", "no such option"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
