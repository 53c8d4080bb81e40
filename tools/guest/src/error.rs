//! Errors of a guest's run: a text for people, which names the cause and, where there is one, the remedy; and programs of
//! this machine, whose failures become such errors.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a guest could not be run, or was not satisfied.
pub struct Error(String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// For `map_err`: names what was being done.
    pub(crate) fn io(doing: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |source| Self(format!("{doing}: {source}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As people read it: a test that unwraps it prints the guest's console.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Error {}

/// The program's path: from `PATH`, or from the administrator's folders that `PATH` may lack. The error names the Debian
/// package that has it.
pub(crate) fn find_program(program: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            Error(format!(
                "`{program}` is not installed: apt-get install {package}"
            ))
        })
}

/// Runs a helper to its end and returns its standard output. The error has its last lines.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(format!("start {command:?}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = [output.stdout, output.stderr].concat();
    Err(Error(format!(
        "`{command:?}` failed ({})\n{}",
        output.status,
        tail(&String::from_utf8_lossy(&text), 30)
    )))
}

/// The last `lines` lines.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
