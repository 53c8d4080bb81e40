//! The options of `cargo xtask planted`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::patches::{self, Patch};
use crate::root;

pub const USAGE: &str = "\
usage: cargo xtask planted [OPTION…] [NAME…]

Applies planted mistakes (planted/NAME.patch) to a copy of the source, one at a time, and runs the test that must find
each. Without names, all of them.

  --some N         only N of them, others for each commit
  --seed S         choose them by this number, and not by the commit that is checked out
  --folder PATH    patches of another folder
  --limit SECONDS  how long one command may take, building included (default 900)
  --list           print the mistakes and plant none
  --help           print this

The exit status is 0 if every mistake was found, 1 if one survived, does not apply, cannot be built or names no test
that passes without it, 2 for a wrong option.
";

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    Run(Options),
    Help,
}

#[derive(Debug)]
pub struct Options {
    pub folder: PathBuf,
    pub limit: Duration,
    pub list: bool,
    names: Vec<String>,
    some: Option<usize>,
    seed: Option<u64>,
}

impl Options {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Action, String> {
        let mut options = Options {
            folder: patches::planted_folder(),
            limit: Duration::from_secs(900),
            list: false,
            names: Vec::new(),
            some: None,
            seed: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.ok_or_else(|| format!("{argument} needs a value"))
            };
            match &*argument {
                "--some" => options.some = Some(number(&value()?)?),
                "--seed" => options.seed = Some(number(&value()?)?),
                "--folder" => options.folder = value()?.into(),
                "--limit" => options.limit = Duration::from_secs(number(&value()?)?),
                "--list" => options.list = true,
                "--help" | "-h" => return Ok(Action::Help),
                option if option.starts_with('-') => {
                    return Err(format!("unknown option {option}"));
                }
                _ => options.names.push(argument),
            }
        }
        if options.some.is_some() && !options.names.is_empty() {
            return Err("either names or --some".to_owned());
        }
        if options.some == Some(0) || options.limit.is_zero() {
            return Err("0 is too few".to_owned());
        }
        Ok(Action::Run(options))
    }

    /// Those that were asked for.
    pub fn choose<'p>(&self, all: &'p [Patch]) -> Result<Vec<&'p Patch>, String> {
        if all.is_empty() {
            return Err(format!("there is no patch in {}", self.folder.display()));
        }
        if !self.names.is_empty() {
            let named = self.names.iter().map(|name| patches::named(all, name));
            return named.collect();
        }
        let mut chosen: Vec<&Patch> = all.iter().collect();
        if let Some(some) = self.some {
            let mut seed = self.seed.map_or_else(|| seed_of_head(&root()), Ok)?;
            // Those that are left are a random choice, in the order of names.
            while chosen.len() > some {
                let count = chosen.len() as u64;
                chosen.remove(usize::try_from(next(&mut seed) % count).unwrap_or(0));
            }
        }
        Ok(chosen)
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    let number = text.parse();
    number.map_err(|_| format!("'{text}' is not a number that can be used here"))
}

/// The first digits of the commit that is checked out.
fn seed_of_head(repository: &Path) -> Result<u64, String> {
    let mut git = Command::new("git");
    git.args(["rev-parse", "--verify", "HEAD"]);
    let output = git.current_dir(repository).output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    let commit = String::from_utf8_lossy(&output.stdout);
    let digits = commit
        .get(..16)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digits.ok_or_else(|| "no commit is checked out: name a --seed".to_owned())
}

/// SplitMix64.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *seed;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        match Options::parse(line.split_whitespace().map(str::to_owned))? {
            Action::Run(options) => Ok(options),
            Action::Help => Err("help".to_owned()),
        }
    }

    fn ten() -> (tempfile::TempDir, Vec<Patch>) {
        let folder = tempfile::tempdir().expect("a folder");
        for name in 'a'..='j' {
            let path = folder.path().join(format!("{name}.patch"));
            std::fs::write(path, "diff --git a/a b/a\n").expect("a file");
        }
        let patches = patches::all(folder.path()).expect("patches");
        (folder, patches)
    }

    fn chosen(line: &str, all: &[Patch]) -> String {
        let chosen = options(line).expect("right").choose(all).expect("there");
        chosen.iter().map(|patch| patch.name.as_str()).collect()
    }

    #[test]
    fn seed_selects_the_planted_mistakes() {
        let (_folder, all) = ten();
        assert_eq!(chosen("", &all), "abcdefghij");
        assert_eq!(chosen("h c", &all), "hc");
        let some = chosen("--some 3 --seed 7", &all);
        assert_eq!(some.len(), 3);
        assert_eq!(chosen("--some 3 --seed 7", &all), some);
        let mut choices: Vec<String> = (0..20)
            .map(|seed| chosen(&format!("--some 3 --seed {seed}"), &all))
            .collect();
        choices.sort();
        choices.dedup();
        assert!(choices.len() > 10, "{choices:?}");
        assert_eq!(chosen("--some 30", &all), "abcdefghij");
    }

    #[test]
    fn each_commit_has_another_seed() {
        let repository = tempfile::tempdir().expect("a folder");
        let git = |line: &str| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=a", "-c", "user.email=a@b"]);
            git.args(line.split_whitespace());
            let output = git.current_dir(repository.path()).output();
            assert!(output.expect("git").status.success(), "{line}");
        };
        git("init --quiet");
        seed_of_head(repository.path()).expect_err("no commit");
        let commit = |message| {
            git(&format!("commit --quiet --allow-empty --message {message}"));
            seed_of_head(repository.path()).expect("a seed")
        };
        let (one, other) = (commit("one"), commit("other"));
        assert_ne!(one, other);
        assert_eq!(seed_of_head(repository.path()), Ok(other));
    }

    #[test]
    fn invalid_planted_options_are_refused() {
        let wrong = [
            "--some",
            "--some x",
            "--some 0",
            "--some 1 a",
            "--limit 0",
            "--what",
        ];
        for wrong in wrong {
            assert!(options(wrong).is_err(), "{wrong}");
        }
        let (_folder, all) = ten();
        assert!(options("z").expect("right").choose(&all).is_err());
        assert!(options("").expect("right").choose(&[]).is_err());
    }
}
