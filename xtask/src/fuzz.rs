//! `cargo xtask fuzz`: builds libFuzzer with the targets of `tools/fuzz-targets`, runs them, keeps what they learn, and says how to see
//! a finding again.
//!
//! One program has all targets; a variable of its environment says which one runs. A target's corpus is a file in `fuzz/corpora`; it
//! works on a folder of the same inputs below the build folder, which grows from run to run. `--save` puts what is worth keeping back
//! into the file.

mod job;
mod options;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use test_support::corpus;

use crate::root;
use job::Job;
use options::Options;

/// Targets, and where things are.
pub(crate) struct Fuzz {
    /// The program with all of them.
    program: PathBuf,
    /// Folders of inputs, logs and findings.
    work: PathBuf,
    targets: Vec<String>,
}

/// `cargo xtask fuzz …`.
pub(crate) fn fuzz(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("fuzz: {error}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool, String> {
    let fuzz = Fuzz::build(options.target.as_deref())?;
    if let Some(input) = &options.replay {
        let target = options.target.as_deref().unwrap_or_default();
        return fuzz.replay(target, input);
    }
    let mut all_well = true;
    let share = options.time / u32::try_from(fuzz.targets.len()).unwrap_or(1);
    for target in &fuzz.targets {
        let mut jobs = Vec::new();
        for number in 0..options.jobs {
            jobs.push(Job::start(&fuzz, target, number, share)?);
        }
        all_well &= job::wait(jobs);
        if options.save {
            fuzz.save(target)?;
        }
    }
    Ok(all_well)
}

impl Fuzz {
    /// Builds the program, to run one target or all of them.
    fn build(target: Option<&str>) -> Result<Self, String> {
        let folder = root().join("fuzz");
        let known = targets(&folder)?;
        let targets = match target {
            None => known,
            Some(target) if known.iter().any(|known| known == target) => vec![target.to_owned()],
            Some(target) => {
                return Err(format!(
                    "no target '{target}'; there are {}",
                    known.join(", ")
                ));
            }
        };
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // `.cargo/config.toml` there has the flags; the environment's would take their place.
        build
            .args(["build", "--release", "--quiet"])
            .current_dir(&folder)
            .env_remove("RUSTFLAGS");
        let built = build
            .status()
            .map_err(|error| format!("cannot start cargo: {error}"))?;
        if !built.success() {
            return Err("the targets cannot be built".to_owned());
        }
        let output = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(output) => {
                std::path::absolute(PathBuf::from(output)).map_err(|error| error.to_string())?
            }
            None => folder.join("target"),
        };
        Ok(Fuzz {
            program: output.join(host()?).join("release/fuzz"),
            work: output.join("fuzzing"),
            targets,
        })
    }

    fn program(&self, target: &str) -> Command {
        let mut program = Command::new(&self.program);
        program.env("FUZZ_TARGET", target);
        program
    }

    /// Where a target keeps the inputs that it works on.
    fn inputs(&self, target: &str) -> PathBuf {
        self.work.join("inputs").join(target)
    }

    /// Its inputs in the repository.
    fn corpus(target: &str) -> PathBuf {
        root()
            .join("fuzz/corpora")
            .join(target)
            .with_extension("corpus")
    }

    fn replay(&self, target: &str, input: &Path) -> Result<bool, String> {
        let status = self.program(target).arg(input).status();
        Ok(status
            .map_err(|error| format!("cannot start {target}: {error}"))?
            .success())
    }

    /// Puts those inputs into the repository that together reach all that all of them reach.
    fn save(&self, target: &str) -> Result<(), String> {
        let (all, chosen) = (self.inputs(target), self.work.join("chosen").join(target));
        let _ = std::fs::remove_dir_all(&chosen);
        std::fs::create_dir_all(&chosen)
            .map_err(|error| format!("{}: {error}", chosen.display()))?;
        let merged = self
            .program(target)
            .arg("-set_cover_merge=1")
            .args([&chosen, &all])
            .output();
        if !merged.is_ok_and(|merged| merged.status.success()) {
            return Err(format!("{target}: the inputs cannot be compared"));
        }
        let file = Fuzz::corpus(target);
        let (count, bytes) = corpus::pack(&chosen, &file)?;
        eprintln!(
            "{target}: {count} inputs of {bytes} bytes in {}",
            file.display()
        );
        Ok(())
    }
}

/// Each has a corpus.
fn targets(folder: &Path) -> Result<Vec<String>, String> {
    let corpora = folder.join("corpora");
    let entries =
        std::fs::read_dir(&corpora).map_err(|error| format!("{}: {error}", corpora.display()))?;
    let mut targets: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
        .collect();
    targets.sort();
    Ok(targets)
}

/// What the compiler calls this machine.
fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("--print=host-tuple").output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
