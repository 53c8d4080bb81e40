//! A guest's report on its console, as data. The protocol's other side is `init/lib.sh`.
//!
//! The console also carries the kernel's messages: a line that is not ours is kept and not interpreted.

use std::collections::BTreeMap;

use crate::error::tail;

/// Console lines that an error carries.
const TAIL_LINES: usize = 40;

/// One step of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Its name, a function in the scenario's script.
    pub name: String,
    /// The lines that it printed.
    pub output: Vec<String>,
    /// Whether it ended well. Always, in a report that a [`Boot`](crate::Boot) returned.
    pub ok: bool,
}

/// Everything that a guest reported.
#[derive(Clone, Debug, Default)]
pub struct Report {
    steps: Vec<Step>,
    facts: BTreeMap<String, String>,
    console: String,
}

/// What a console line asks of the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing.
    None,
    /// A step began.
    Step(String),
    /// The guest waits for an answer to this question.
    Ask(String),
    /// A step failed: its name and the reason.
    Fail(String, String),
    /// The scenario is complete.
    End,
}

impl Report {
    /// Takes in one line of the console.
    pub(crate) fn line(&mut self, line: &str) -> Event {
        let line = &without_escapes(line.trim_end_matches('\r'));
        self.console.push_str(line);
        self.console.push('\n');
        if let Some(text) = line.strip_prefix("BP| ") {
            if let Some(step) = self.steps.last_mut() {
                step.output.push(text.to_owned());
            }
        } else if let Some((key, value)) = line
            .strip_prefix("BP: ")
            .and_then(|fact| fact.split_once('='))
        {
            self.facts.insert(key.to_owned(), value.to_owned());
        } else if let Some(name) = line.strip_prefix("BP-STEP ") {
            self.steps.push(Step {
                name: name.to_owned(),
                ..Step::default()
            });
            return Event::Step(name.to_owned());
        } else if let Some(name) = line.strip_prefix("BP-OK ") {
            if let Some(step) = self.steps.last_mut().filter(|step| step.name == name) {
                step.ok = true;
            }
        } else if let Some(name) = line.strip_prefix("BP-ASK ") {
            return Event::Ask(name.to_owned());
        } else if let Some(failure) = line.strip_prefix("BP-FAIL ") {
            let (step, reason) = failure.split_once(' ').unwrap_or((failure, ""));
            return Event::Fail(step.to_owned(), reason.to_owned());
        } else if line == "BP-END" {
            return Event::End;
        }
        Event::None
    }

    /// The steps in the order in which they ran.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Of so many writers of `verified_rounds.sh` the first that has not written anything.
    #[must_use]
    pub fn idle_writer(&self, writers: u16) -> Option<u16> {
        (0..writers).find(|writer| {
            let rounds = self.fact(&format!("rounds.{writer}"));
            rounds.is_none_or(|rounds| rounds == "0")
        })
    }

    /// A fact, such as `size_bytes`, `queues`, `serial`, `write_cache`, `sum.<file>`.
    #[must_use]
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.facts.get(key).map(String::as_str)
    }

    /// The SHA-256 of everything that the guest wrote or read back, by file or region.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<&str, &str> {
        self.facts
            .iter()
            .filter_map(|(key, hash)| Some((key.strip_prefix("sum.")?, hash.as_str())))
            .collect()
    }

    /// The end of the console, for errors.
    pub(crate) fn console_tail(&self) -> String {
        tail(&self.console, TAIL_LINES)
    }

    /// What the guest saw, for people.
    #[must_use]
    pub fn transcript(&self) -> String {
        let mut text = String::from("  what the guest saw\n");
        for (key, value) in self
            .facts
            .iter()
            .filter(|(key, _)| !key.starts_with("sum."))
        {
            text.push_str(&format!("    {key:<24} {value}\n"));
        }
        for step in &self.steps {
            text.push_str(&format!(
                "  {} {}\n",
                if step.ok { "ok    " } else { "FAILED" },
                step.name
            ));
            for line in &step.output {
                text.push_str(&format!("      {line}\n"));
            }
        }
        let sums = self.sums();
        if !sums.is_empty() {
            text.push_str(&format!(
                "  {} checksums (SHA-256), the first of them\n",
                sums.len()
            ));
            for (name, hash) in sums.iter().take(6) {
                text.push_str(&format!("    {hash}  {name}\n"));
            }
        }
        text
    }
}

/// The line without the sequences by which firmware and boot loaders move the cursor and choose colours (ECMA-48).
fn without_escapes(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' => {
                // A control sequence ends with a letter or one of a few signs; other sequences have one character.
                if chars.next() == Some('[') {
                    let _end = chars.find(|char| ('@'..='~').contains(char));
                }
            }
            '\t' => plain.push(char),
            char if char.is_control() => {}
            char => plain.push(char),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_becomes_steps_facts_and_events() {
        let mut report = Report::default();
        let console = "\u{1b}[2Jnoise\n[    0.1] kernel noise\nBP-STEP look\r\nBP: serial=a=b\nBP| one\nBP| \nBP-OK look\n\
                       BP-STEP write\nBP: sum.f=00ff\nBP-ASK written\nBP-FAIL write status 1: no space\nBP-ENDED\nBP-END\r\n";
        let events: Vec<Event> = console.lines().map(|line| report.line(line)).collect();
        assert_eq!(events[2], Event::Step("look".to_owned()));
        assert_eq!(events[9], Event::Ask("written".to_owned()));
        assert_eq!(
            events[10],
            Event::Fail("write".to_owned(), "status 1: no space".to_owned())
        );
        assert_eq!(events[11..], [Event::None, Event::End]);
        assert_eq!(report.fact("serial"), Some("a=b"));
        assert!(report.console.starts_with("noise\n"));
        assert_eq!(
            report.sums().into_iter().collect::<Vec<_>>(),
            [("f", "00ff")]
        );
        assert_eq!(report.steps()[0].output, ["one", ""]);
        assert!(report.steps()[0].ok && !report.steps()[1].ok);
    }
}
