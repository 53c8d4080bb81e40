//! One process that fuzzes, and waiting for several.

use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use test_support::corpus;

use super::Fuzz;

/// How long one input may take.
const INPUT_TIME: Duration = Duration::from_secs(20);

/// Memory of one process, in MiB.
const MEMORY_MIB: usize = 1024;

/// Bytes of an input that is made up.
const LONGEST_INPUT: usize = 2048;

/// The time between reports of progress.
const LOOK_TIME: Duration = Duration::from_secs(10);

/// A process, and where it leaves what it has to say.
pub(crate) struct Job {
    target: String,
    child: Child,
    log: PathBuf,
    findings: PathBuf,
    started: Instant,
}

impl Job {
    /// Fuzzes for so long, beginning with the corpus. New inputs that reach more join the target's folder.
    pub(crate) fn start(
        fuzz: &Fuzz,
        target: &str,
        number: usize,
        time: Duration,
    ) -> Result<Self, String> {
        let (logs, findings) = (fuzz.work.join("logs"), fuzz.work.join("findings"));
        for folder in [&logs, &findings] {
            std::fs::create_dir_all(folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let log = logs.join(format!("{target}-{number}.log"));
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = fuzz.program(target);
        command
            .arg(format!("-timeout={}", INPUT_TIME.as_secs()))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            .arg(format!("-max_len={LONGEST_INPUT}"))
            .arg(format!("-artifact_prefix={}/{target}-", findings.display()))
            .arg("-print_final_stats=1");
        let words = crate::root().join("fuzz/words").join(target);
        if words.exists() {
            command.arg(format!("-dict={}", words.display()));
        }
        let inputs = fuzz.inputs(target);
        corpus::unpack(&Fuzz::corpus(target), &inputs)?;
        command
            .arg(format!("-max_total_time={}", time.as_secs().max(1)))
            .arg(inputs);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn();
        Ok(Job {
            target: target.to_owned(),
            child: child.map_err(|error| format!("cannot start {target}: {error}"))?,
            log,
            findings,
            started: Instant::now(),
        })
    }

    /// What the log says last: inputs, edges that were reached, and inputs that are kept.
    fn progress(&self) -> String {
        let Progress {
            inputs,
            edges,
            kept,
        } = Progress::read(&self.text());
        let (target, seconds) = (&self.target, self.started.elapsed().as_secs());
        format!(
            "{target:<12} {seconds:>5} s  {inputs:>10} inputs  {edges:>6} edges  {kept:>5} kept"
        )
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// What it found: the message, the input, and how to see it again.
    fn tell_finding(&self) {
        let log = self.text();
        let from = log
            .lines()
            .position(|line| line.contains("panicked at") || line.contains("ERROR: libFuzzer"));
        eprintln!("\n{}: a finding", self.target);
        for line in log.lines().skip(from.unwrap_or(0)).take(12) {
            eprintln!("  {line}");
        }
        let written = log
            .lines()
            .find_map(|line| line.split_once("Test unit written to "));
        match written {
            Some((_, input)) => eprintln!(
                "  see it again: cargo xtask fuzz {} --replay {input}",
                self.target
            ),
            None => eprintln!(
                "  all that it said: {}; inputs: {}",
                self.log.display(),
                self.findings.display()
            ),
        }
    }
}

/// How far a log says that its process is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Progress {
    inputs: u64,
    edges: u64,
    kept: u64,
}

impl Progress {
    /// Lines are like `#1234 NEW cov: 56 ft: 78 corp: 9/1011b …`.
    fn read(log: &str) -> Self {
        let number = |text: &str| {
            let digits = text
                .trim_start()
                .split(|char: char| !char.is_ascii_digit())
                .next();
            digits.and_then(|digits| digits.parse().ok())
        };
        let line = |line: &str| {
            let inputs = number(line.strip_prefix('#')?)?;
            let after = |name| line.split_once(name).and_then(|(_, rest)| number(rest));
            Some(Progress {
                inputs,
                edges: after("cov:")?,
                kept: after("corp:").unwrap_or(0),
            })
        };
        log.lines().rev().find_map(line).unwrap_or_default()
    }
}

/// Waits for all of them; true if none has found anything.
pub(crate) fn wait(mut jobs: Vec<Job>) -> bool {
    let mut all_well = true;
    let mut reported = Instant::now();
    while !jobs.is_empty() {
        std::thread::sleep(Duration::from_millis(100));
        let mut still = Vec::new();
        for mut job in jobs {
            match job.child.try_wait() {
                Ok(None) => still.push(job),
                Ok(Some(status)) if status.success() => eprintln!("{}", job.progress()),
                _ => {
                    job.tell_finding();
                    all_well = false;
                }
            }
        }
        jobs = still;
        if reported.elapsed() >= LOOK_TIME && stderr().is_terminal() {
            reported = Instant::now();
            for job in &jobs {
                eprintln!("{}", job.progress());
            }
        }
    }
    all_well
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_comes_from_the_last_line_with_numbers() {
        let log = "#2 INITED cov: 3 ft: 4 corp: 1/1b\n#1234\tDONE   cov: 56 ft: 78 corp: 9/1011b lim: 4\n\
                   ###### End of recommended dictionary. ######\n";
        let (inputs, edges, kept) = (1234, 56, 9);
        let read = Progress::read(log);
        assert_eq!(
            read,
            Progress {
                inputs,
                edges,
                kept
            }
        );
        assert_eq!(Progress::read("INFO: nothing yet"), Progress::default());
    }
}
