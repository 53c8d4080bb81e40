//! The outcome of a planted mistake, and the table of all.

use std::fmt;
use std::time::Duration;

/// Status of timeout(1) when the time was over.
const TIMED_OUT: i32 = 124;
/// The same, when it had to kill.
const KILLED: i32 = 137;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By this test, or with this last line of output.
    Found(String),
    /// The command succeeded.
    Survived,
    DoesNotApply(String),
    DoesNotBuild(String),
    /// Its text names no command.
    NoCommand,
    /// The command fails without the mistake, too.
    FailsWithout(String),
}

pub struct Row {
    pub name: String,
    pub outcome: Outcome,
    pub took: Duration,
}

impl Outcome {
    pub fn is_found(&self) -> bool {
        matches!(self, Outcome::Found(_))
    }

    fn applied(&self) -> &'static str {
        match self {
            Outcome::Found(_) | Outcome::Survived | Outcome::DoesNotBuild(_) => "yes",
            Outcome::DoesNotApply(_) => "NO",
            Outcome::NoCommand | Outcome::FailsWithout(_) => "-",
        }
    }

    fn built(&self) -> &'static str {
        match self {
            Outcome::Found(_) | Outcome::Survived => "yes",
            Outcome::DoesNotBuild(_) => "NO",
            Outcome::DoesNotApply(_) | Outcome::NoCommand | Outcome::FailsWithout(_) => "-",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Found(by) => f.write_str(by),
            Outcome::Survived => f.write_str("SURVIVED"),
            Outcome::DoesNotApply(why) => write!(f, "DOES NOT APPLY: {}", first_line(why)),
            Outcome::DoesNotBuild(why) => write!(f, "DOES NOT BUILD: {why}"),
            Outcome::NoCommand => f.write_str("NO LINE 'Finds: COMMAND'"),
            Outcome::FailsWithout(how) => write!(f, "FAILS WITHOUT IT: {how}"),
        }
    }
}

/// What a command's status and output say.
pub fn classify(status: Option<i32>, output: &str, limit: Duration) -> Outcome {
    let failed_test = failed_test(output);
    match status {
        Some(0) => Outcome::Survived,
        Some(TIMED_OUT | KILLED) => {
            let seconds = limit.as_secs();
            let by = failed_test.unwrap_or_else(|| format!("no end within {seconds} s"));
            Outcome::Found(by)
        }
        _ => match (failed_test, compiler_error(output)) {
            (Some(test), _) => Outcome::Found(test),
            (None, Some(error)) => Outcome::DoesNotBuild(error),
            (None, None) => Outcome::Found(last_line(output)),
        },
    }
}

/// The first test that the harness reports as failed, as `test NAME ... FAILED`.
fn failed_test(output: &str) -> Option<String> {
    let failed = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.trim_end_matches(" - should panic").to_owned())
    };
    output.lines().find_map(failed)
}

/// Of a build that failed, the first error. A command that cargo does not take is one as well.
fn compiler_error(output: &str) -> Option<String> {
    let cargo_failed = output.lines().any(|line| {
        line.starts_with("error: could not compile") || line.starts_with("error: no test target")
    });
    let is_error = |line: &&str| line.starts_with("error");
    cargo_failed.then(|| output.lines().find(is_error).unwrap_or_default().to_owned())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn last_line(output: &str) -> String {
    let mut lines = output.lines().rev().map(str::trim);
    let last = lines.find(|line| !line.is_empty());
    last.unwrap_or("a status that is not 0").to_owned()
}

/// All outcomes, and how many were found.
pub fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let width = width.max("patch".len());
    let mut text = format!(
        "\n{:<width$}  applied  built  {:>7}  found by\n",
        "patch", "time"
    );
    for Row {
        name,
        outcome,
        took,
    } in rows
    {
        text.push_str(&format!(
            "{name:<width$}  {:<7}  {:<5}  {:>5.0} s  {outcome}\n",
            outcome.applied(),
            outcome.built(),
            took.as_secs_f64()
        ));
    }
    let found = rows.iter().filter(|row| row.outcome.is_found()).count();
    text.push_str(&format!("{found} of {} found\n", rows.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(9);

    #[test]
    fn a_failing_test_finds_a_mistake_and_a_failing_build_does_not() {
        let tests = "running 2 tests\ntest a::works ... ok\ntest b::fails ... FAILED\ntest c ... FAILED\n\
                     error: test failed, to rerun pass `--lib`\n";
        let found = |by: &str| Outcome::Found(by.to_owned());
        assert_eq!(classify(Some(101), tests, LIMIT), found("b::fails"));
        assert_eq!(classify(Some(124), tests, LIMIT), found("b::fails"));
        let build = "error[E0425]: no such name\n  --> a.rs\nerror: could not compile `a`\n";
        let error = "error[E0425]: no such name".to_owned();
        assert_eq!(
            classify(Some(101), build, LIMIT),
            Outcome::DoesNotBuild(error)
        );
        assert_eq!(
            classify(Some(1), "seed 7: lost a write\n\n", LIMIT),
            found("seed 7: lost a write")
        );
        assert_eq!(classify(Some(124), "", LIMIT), found("no end within 9 s"));
        assert_eq!(
            classify(Some(0), "test a ... FAILED\n", LIMIT),
            Outcome::Survived
        );
        assert_eq!(classify(None, "", LIMIT), found("a status that is not 0"));
    }

    #[test]
    fn table_lists_all_mistakes_and_counts_the_found_ones() {
        let row = |name: &str, outcome| Row {
            name: name.to_owned(),
            outcome,
            took: Duration::from_millis(1600),
        };
        let rows = [
            row("short", Outcome::Found("a::test".to_owned())),
            row("one-that-is-longer", Outcome::Survived),
            row("third", Outcome::DoesNotApply("error: x\ny".to_owned())),
        ];
        let expected = "
patch               applied  built     time  found by
short               yes      yes        2 s  a::test
one-that-is-longer  yes      yes        2 s  SURVIVED
third               NO       -          2 s  DOES NOT APPLY: error: x
1 of 3 found
";
        assert_eq!(table(&rows), expected);
    }
}
