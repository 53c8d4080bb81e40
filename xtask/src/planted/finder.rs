//! The commands that find mistakes, and the one build that they share.
//!
//! `cargo test -p CRATE (--lib | --test NAME) ARGUMENT…` is a test of the product: the executables of all of these are built by one
//! call of cargo, and run directly. By calls of their own, cargo would build what they depend on several times, with the features
//! that each selection of crates needs. Other commands call cargo in a workspace of its own, and are run as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::outcome::Run;
use super::switched::VARIABLE;
use crate::cargo_in;
use crate::copy::SourceCopy;
use crate::environment::remove_settings_of_contributor;
use crate::patches::Patch;

/// For a command without a mistake, which may build what it runs.
const LIMIT_WITHOUT: Duration = Duration::from_secs(1800);
/// Several times of what the slowest command needs then.
const LIMIT: Duration = Duration::from_secs(300);
/// Status of timeout(1) when the time was over, and when it had to kill.
const TIMED_OUT: [i32; 2] = [124, 137];

/// What `--lib` or `--test NAME` of a crate selects; `None`: the library.
type TestTarget = (String, Option<String>);

/// The command that must fail with the mistake.
pub(super) fn command_of(patch: &Patch) -> Result<&str, String> {
    patch
        .field("Finds")
        .ok_or("no line 'Finds: COMMAND'".to_owned())
}

/// The test executable and its arguments, if the command is a test of the product.
fn parse(command: &str) -> Option<(TestTarget, Vec<&str>)> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let (target, arguments) = match *words.strip_prefix(&["cargo", "test", "-p"])? {
        [name, "--lib", ref rest @ ..] => ((name.to_owned(), None), rest),
        [name, "--test", test, ref rest @ ..] => ((name.to_owned(), Some(test.to_owned())), rest),
        _ => return None,
    };
    let arguments = arguments.iter().copied();
    Some((target, arguments.filter(|word| *word != "--").collect()))
}

pub(super) struct Finders<'c> {
    copy: &'c SourceCopy,
    logs: PathBuf,
    executables: BTreeMap<TestTarget, Executable>,
}

struct Executable {
    path: PathBuf,
    /// Where cargo runs it.
    folder: PathBuf,
}

impl<'c> Finders<'c> {
    /// Builds what the patches' commands run.
    pub fn build(copy: &'c SourceCopy, patches: &[Patch]) -> Result<Self, String> {
        let logs = copy.build().join("../logs");
        std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
        let commands = patches.iter().flat_map(command_of);
        let targets: BTreeSet<TestTarget> =
            commands.flat_map(parse).map(|(target, _)| target).collect();
        let finders = Finders {
            copy,
            logs,
            executables: build_tests(copy, &targets)?,
        };
        match targets
            .iter()
            .find(|target| !finders.executables.contains_key(*target))
        {
            Some((name, test)) => Err(format!("{name} has no test {test:?}")),
            None => Ok(finders),
        }
    }

    /// Runs a command to its end, with this mistake or without any.
    pub fn run(&self, command: &str, mistake: Option<&str>) -> Run {
        let started = Instant::now();
        let log = mistake.unwrap_or(command).replace([' ', '/'], "_");
        let log = self.logs.join(log).with_extension("log");
        let status = self.start(command, mistake, &log);
        let output = std::fs::read(&log).unwrap_or_default();
        let mut output = String::from_utf8_lossy(&output).into_owned();
        if let Err(error) = &status {
            output.push_str(error);
        }
        let code = status.ok().flatten();
        Run {
            passed: code == Some(0),
            timed_out: code.is_some_and(|code| TIMED_OUT.contains(&code)),
            output,
            took: started.elapsed(),
        }
    }

    fn start(
        &self,
        command: &str,
        mistake: Option<&str>,
        log: &Path,
    ) -> Result<Option<i32>, String> {
        // It ends all that the command has started, also what hangs in a system call.
        let mut timeout = Command::new("timeout");
        let limit = mistake.map_or(LIMIT_WITHOUT, |_| LIMIT);
        timeout.args(["--kill-after=5", &limit.as_secs().to_string()]);
        clean_environment(&mut timeout);
        timeout.env("CARGO_TARGET_DIR", self.copy.build());
        // A few do not always show that an image has lost a write.
        timeout.env("BLOCKPLANE_KILLS", "25");
        match parse(command) {
            Some((target, arguments)) => {
                let executable = self.executables.get(&target).ok_or("it was not built")?;
                timeout.arg(&executable.path).args(arguments);
                timeout.arg("--include-ignored");
                timeout.current_dir(&executable.folder);
                // As cargo sets it: recorded files are found by it.
                timeout.env("CARGO_MANIFEST_DIR", &executable.folder);
            }
            None => {
                timeout.args(["sh", "-c", command]);
                timeout.current_dir(self.copy.folder());
            }
        }
        if let Some(mistake) = mistake {
            timeout.env(VARIABLE, mistake);
        }
        let io = |error| format!("{}: {error}", log.display());
        let output = File::create(log).map_err(io)?;
        timeout.stdin(Stdio::null());
        timeout.stdout(output.try_clone().map_err(io)?);
        let status = timeout.stderr(output).status();
        let status = status.map_err(|error| format!("cannot start timeout: {error}"))?;
        Ok(status.code())
    }
}

/// Without what cargo has set for us: the command's own packages and programs are others.
fn clean_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text == "CARGO_MANIFEST_DIR" {
            command.env_remove(name);
        }
    }
    // The simulator needs few seeds.
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    remove_settings_of_contributor(command);
}

fn build_tests(
    copy: &SourceCopy,
    targets: &BTreeSet<TestTarget>,
) -> Result<BTreeMap<TestTarget, Executable>, String> {
    let mut build = cargo_in(copy.folder(), &["test", "--no-run", "--lib"]);
    build.arg("--message-format=json-render-diagnostics");
    for (name, test) in targets {
        build.args(["--package", name]);
        if let Some(test) = test {
            build.args(["--test", test]);
        }
    }
    clean_environment(&mut build);
    build.env("CARGO_TARGET_DIR", copy.build());
    // The compiler's time counts more than that of a few tests. They are not debugged, and warnings are not about the product.
    build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    build.env("CARGO_PROFILE_DEV_DEBUG", "0");
    build.env("RUSTFLAGS", "--cap-lints=allow");
    let output = build.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err("the source with all mistakes cannot be built".to_owned());
    }
    let lines = output.stdout.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(test_executable).collect())
}

/// Of a message of cargo's.
fn test_executable(message: &[u8]) -> Option<(TestTarget, Executable)> {
    let message: Value = serde_json::from_slice(message).ok()?;
    let path = message.get("executable")?.as_str()?;
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?;
    let target = message.get("target")?;
    let test = match target.get("kind")?.get(0)?.as_str()? {
        "lib" => None,
        "test" => Some(target.get("name")?.as_str()?.to_owned()),
        _ => return None,
    };
    // Crates have the names of their folders.
    let name = folder.file_name()?.to_str()?.to_owned();
    let executable = Executable {
        path: path.into(),
        folder: folder.to_owned(),
    };
    Some(((name, test), executable))
}
