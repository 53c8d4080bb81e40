//! One process that fuzzes, and waiting for several.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use test_support::corpus;

use super::Fuzz;

/// How long one input may take.
const INPUT_TIME: Duration = Duration::from_secs(20);

/// Memory of one process, in MiB.
const MEMORY_MIB: usize = 1024;

/// Bytes of an input that is made up.
const LONGEST_INPUT: usize = 2048;

/// A process, and where it leaves what it has to say.
pub(crate) struct Job {
    target: String,
    child: Child,
    log: PathBuf,
    findings: PathBuf,
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
        })
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

/// Waits for all of them; true if none has found anything.
pub(crate) fn wait(jobs: Vec<Job>) -> bool {
    let mut all_well = true;
    for mut job in jobs {
        if job.child.wait().is_ok_and(|status| status.success()) {
            // How many inputs, how many edges they reach, and how many are kept.
            let text = job.text();
            let last = text.lines().rfind(|line| line.contains("\tDONE "));
            eprintln!("{}: {}", job.target, last.unwrap_or_default());
        } else {
            job.tell_finding();
            all_well = false;
        }
    }
    all_well
}
