//! A seed of the commit that is tested: what it chooses has been tried by no other run.

use std::process::Command;
use std::sync::LazyLock;

use crate::root;

/// A number that differs from commit to commit.
pub(super) fn of_commit() -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| seed_of(&commit()));
    *SEED
}

/// The commit that is tested, or what stands for it in a source without a repository.
fn commit() -> String {
    let git = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(root())
        .output();
    match git {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => {
            eprintln!("ci: git names no commit here: the seeds are the same in every run");
            String::new()
        }
    }
}

/// Its first twelve digits: far from small numbers, and far from those of other commits.
fn seed_of(commit: &str) -> u64 {
    let digits = commit.get(..12).unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or(0) | 1 << 40
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_a_commit_are_its_own() {
        let (one, other) = (seed_of("e5bef7f71234aaaa"), seed_of("06312f741234aaaa"));
        assert_ne!(one, other);
        assert!(
            [one, other, seed_of("")]
                .iter()
                .all(|seed| *seed >= 1 << 40)
        );
    }
}
