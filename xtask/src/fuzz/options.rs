//! The words after `cargo xtask fuzz`.

use std::path::PathBuf;
use std::time::Duration;

use commands::time::parse_at_least_ms;

pub(crate) const USAGE: &str = "\
usage: cargo xtask fuzz [TARGET] [--time TIME] [--jobs N] [--save]
       cargo xtask fuzz TARGET --replay FILE

  TARGET       one of those with a corpus in fuzz/corpora; without it each has its share of the time
  --time TIME  how long, as 90s, 10m or 1h; 1m unless said
  --jobs N     processes at a time; 1 unless said
  --save       puts the inputs that reach most into fuzz/corpora
  --replay     runs the target on one input
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub target: Option<String>,
    pub time: Duration,
    pub jobs: usize,
    pub save: bool,
    pub replay: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            target: None,
            time: Duration::from_secs(60),
            jobs: 1,
            save: false,
            replay: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
            match word.as_str() {
                "--time" => options.time = parse_at_least_ms(1000, &value()?)?,
                "--jobs" => {
                    let jobs = value()?;
                    let count = jobs.parse().ok().filter(|count| (1..=64).contains(count));
                    options.jobs =
                        count.ok_or_else(|| format!("--jobs {jobs}: a number from 1 to 64"))?;
                }
                "--save" => options.save = true,
                "--replay" => options.replay = Some(value()?.into()),
                other if other.starts_with('-') => return Err(format!("no option {other}")),
                _ if options.target.is_some() => {
                    return Err(format!("'{word}': one target at a time"));
                }
                _ => options.target = Some(word),
            }
        }
        if options.replay.is_some() && options.target.is_none() {
            return Err("--replay: of which target?".to_owned());
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn fuzz_options_are_parsed_or_refused_with_the_reason() {
        let options = parse("scsi --time 2h --jobs 2 --save").unwrap();
        assert_eq!(options.target.as_deref(), Some("scsi"));
        let found = (options.time.as_secs(), options.jobs, options.save);
        assert_eq!(found, (7200, 2, true));
        assert_eq!(parse("").unwrap().time.as_secs(), 60);
        let wrong = "--time,--time 5x,--time s,--time 0m,--jobs 0,a b,--fast,--replay file";
        for wrong in wrong.split(',') {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
