//! The exceptions in `xtask/tidy.toml`, and their comparison with findings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use toml::de::DeTable;

use super::manifest::line;
use super::{FILE, Finding};

/// Begins the part of the file that `--update` writes.
const MARK: &str = "# Exceptions: ";

const INTRODUCTION: &str =
    "# Exceptions: only `cargo xtask tidy --update` writes below this line. Numbers may shrink.\n";

/// The table that has a table for each rule.
const TABLE: &str = "exceptions";

/// Exceptions by rule and subject.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    allowed: BTreeMap<(String, String), Allowed>,
}

/// The number that an exception allows, and its line in the file.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    number: usize,
    line: usize,
}

impl Exceptions {
    /// Reads `[exceptions.RULE]`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document = DeTable::parse(text).map_err(|error| error.to_string())?;
        let rules = document.get_ref().get(TABLE);
        let rules = rules.and_then(|rules| rules.get_ref().as_table());
        let mut allowed = BTreeMap::new();
        for (rule, subjects) in rules.into_iter().flatten() {
            for (subject, number) in subjects.get_ref().as_table().into_iter().flatten() {
                let number = number.get_ref().as_integer();
                let number = number.and_then(|number| number.as_str().parse().ok());
                let name = (rule.get_ref().to_string(), subject.get_ref().to_string());
                let number = number.ok_or_else(|| format!("'{}' has no number", name.1))?;
                let line = line(text, subject.span().start);
                allowed.insert(name, Allowed { number, line });
            }
        }
        Ok(Exceptions { allowed })
    }

    /// An exception for each finding.
    pub(super) fn of(findings: &[Finding]) -> Self {
        let allowed = findings.iter().map(|finding| {
            let number = finding.number;
            (name(finding), Allowed { number, line: 0 })
        });
        Exceptions {
            allowed: allowed.collect(),
        }
    }

    /// These exceptions without what is no longer needed.
    pub(super) fn lowered(&self, findings: &[Finding]) -> Self {
        let mut now = Self::of(findings).allowed;
        now.retain(|name, now| match self.allowed.get(name) {
            Some(allowed) => {
                now.number = now.number.min(allowed.number);
                true
            }
            None => false,
        });
        Exceptions { allowed: now }
    }

    /// Errors: findings that are not excepted, then exceptions that are more than is needed.
    pub(super) fn compare(&self, findings: &[Finding]) -> Vec<String> {
        let mut errors = Vec::new();
        for finding in findings {
            let allowed = self
                .allowed
                .get(&name(finding))
                .map_or(0, |allowed| allowed.number);
            if finding.number > allowed {
                let Finding {
                    path, line, text, ..
                } = finding;
                let allowed = match allowed {
                    0 => String::new(),
                    allowed => format!(" ({} now, {allowed} excepted)", finding.number),
                };
                errors.push(format!("{path}:{line}: {text}{allowed}"));
            }
        }
        let now = Self::of(findings).allowed;
        let mut unneeded: Vec<(usize, String)> = Vec::new();
        for ((rule, subject), &Allowed { number, line }) in &self.allowed {
            let needed = now
                .get(&(rule.clone(), subject.clone()))
                .map_or(0, |now| now.number);
            if needed < number {
                let now = match needed {
                    0 => "no longer applies".to_owned(),
                    needed => format!("is {needed} now, not {number}"),
                };
                unneeded.push((line, format!("the exception '{subject}' from {rule} {now}")));
            }
        }
        unneeded.sort();
        let todo = "run 'cargo xtask tidy --update'";
        errors.extend(
            unneeded
                .into_iter()
                .map(|(line, text)| format!("{FILE}:{line}: {text}; {todo}")),
        );
        errors
    }

    /// The text of the file with these exceptions in place of its own.
    pub(super) fn write_into(&self, file: &str) -> String {
        let settings = file.find(MARK).map_or(file, |at| &file[..at]);
        let mut text = format!("{}\n\n{INTRODUCTION}", settings.trim_end());
        let mut last = "";
        for ((rule, subject), Allowed { number, .. }) in &self.allowed {
            if rule != last {
                let _ = write!(text, "\n[{TABLE}.{rule}]\n");
                last = rule;
            }
            let _ = writeln!(text, "\"{subject}\" = {number}");
        }
        text
    }
}

fn name(finding: &Finding) -> (String, String) {
    (finding.rule.to_owned(), finding.subject.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE_TEXT: &str = "floors = []\n\n# Exceptions: old\n\n[exceptions.words]\n\"a.rs: frob\" = 3\n\"b.rs: frob\" = 1\n";

    fn finding(subject: &str, number: usize) -> Finding {
        Finding {
            rule: "words",
            subject: subject.to_owned(),
            number,
            path: "a.rs".to_owned(),
            line: 7,
            text: "too much; do less".to_owned(),
        }
    }

    fn exceptions() -> Exceptions {
        Exceptions::parse(FILE_TEXT).expect("a valid file")
    }

    #[test]
    fn only_what_is_excepted_passes() {
        let excepted = [finding("a.rs: frob", 3), finding("b.rs: frob", 1)];
        assert_eq!(exceptions().compare(&excepted), [""; 0]);
        let more = [
            finding("a.rs: frob", 4),
            finding("b.rs: frob", 1),
            finding("c.rs: frob", 1),
        ];
        let errors = [
            "a.rs:7: too much; do less (4 now, 3 excepted)",
            "a.rs:7: too much; do less",
        ];
        assert_eq!(exceptions().compare(&more), errors);
    }

    #[test]
    fn an_exception_that_could_be_smaller_is_an_error() {
        let errors = [
            "xtask/tidy.toml:6: the exception 'a.rs: frob' from words is 2 now, not 3; run 'cargo xtask tidy --update'",
            "xtask/tidy.toml:7: the exception 'b.rs: frob' from words no longer applies; run 'cargo xtask tidy --update'",
        ];
        assert_eq!(exceptions().compare(&[finding("a.rs: frob", 2)]), errors);
    }

    #[test]
    fn an_update_lowers_and_never_adds() {
        let now = [finding("a.rs: frob", 2), finding("c.rs: frob", 1)];
        let written = exceptions().lowered(&now).write_into(FILE_TEXT);
        let expected =
            format!("floors = []\n\n{INTRODUCTION}\n[exceptions.words]\n\"a.rs: frob\" = 2\n");
        assert_eq!(written, expected);
        let more = [finding("a.rs: frob", 9), finding("b.rs: frob", 1)];
        let written = exceptions().lowered(&more).write_into(FILE_TEXT);
        assert!(
            written.ends_with("\"a.rs: frob\" = 3\n\"b.rs: frob\" = 1\n"),
            "{written}"
        );
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let all = [finding("a.rs: frob", 9), finding("c.rs", 1)];
        let written = Exceptions::of(&all).write_into("floors = []\n");
        let read = Exceptions::parse(&written).expect("a valid file");
        assert_eq!(read.compare(&all), [""; 0]);
        assert_eq!(read.write_into(&written), written);
    }
}
