//! Errors of a guest's run, from booting it to its last check.
//!
//! Each message names the cause and, where there is one, the command that puts it right.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Lines of the daemon's log that an error carries.
const DAEMON_LINES: usize = 60;

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a guest could not be run, or was not satisfied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that we need is not installed.
    #[error("`{program}` is not installed: apt-get install {package}")]
    MissingProgram {
        /// The program that was looked for.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// This machine cannot give us a guest kernel.
    #[error("guests here are x86-64 and use Debian's kernel; this machine has {found}")]
    NotDebian {
        /// What was found instead.
        found: String,
    },
    /// apt knows no kernel package.
    #[error("apt knows no package for `linux-image-amd64`: run `apt-get update` first\n{detail}")]
    NoKernelPackage {
        /// What apt said.
        detail: String,
    },
    /// No QEMU here is new enough, and Debian's could not be had.
    #[error(
        "guests on a host adapter, and those that move, need QEMU 11.1 or newer (`vfio-user-pci`); the installed one is \
         older, and Debian's backport cannot be had: let this machine reach its mirror, or install a newer QEMU\n{detail}"
    )]
    NoVfioUser {
        /// What was tried.
        detail: String,
    },
    /// Packages of a Debian release could not be had.
    #[error(
        "Debian's packages of {release} cannot be had: let this machine reach their mirror\n{detail}"
    )]
    NoPackages {
        /// The release.
        release: &'static str,
        /// What was tried, and what apt said.
        detail: String,
    },
    /// The kernel package lacks a file.
    #[error("the kernel package {release} has no {what}")]
    KernelIncomplete {
        /// The kernel's release.
        release: String,
        /// The file or module that is missing.
        what: String,
    },
    /// A guest did not move to another QEMU.
    #[error("the guest did not move: {0}")]
    Migration(String),
    /// A helper program failed.
    #[error("`{command}` failed ({status})\n{output}")]
    CommandFailed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// An operating-system error, and what we were doing.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, and with which file.
        doing: String,
        /// The error.
        source: io::Error,
    },
    /// A value given by the caller cannot be passed to the guest.
    #[error(
        "{what}: {value:?} cannot be passed on the guest's command line (no spaces, quotes or commas)"
    )]
    BadValue {
        /// Which value.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// The server ended, or did not listen in time.
    #[error("the server {what} ({command})\n{log}")]
    Server {
        /// What happened.
        what: String,
        /// Its command line.
        command: String,
        /// Everything that it printed.
        log: String,
    },
    /// A step failed inside the guest.
    #[error(
        "in the guest, step `{step}` failed: {reason}\n--- the guest's console ---\n{console}\n--- the daemon's log ---\n{daemon}"
    )]
    StepFailed {
        /// The step's name.
        step: String,
        /// What the guest said.
        reason: String,
        /// The end of the console.
        console: String,
        /// What the daemon has logged since its start, or since its last guest.
        daemon: String,
    },
    /// The guest stopped before it said that it was done.
    #[error(
        "the guest ended before its script did (QEMU: {status})\n{stderr}\n--- the guest's console ---\n{console}\n--- the daemon's log ---\n{daemon}"
    )]
    GuestDied {
        /// How QEMU ended.
        status: ExitStatus,
        /// What QEMU printed on standard error.
        stderr: String,
        /// The end of the console.
        console: String,
        /// What the daemon has logged since its start, or since its last guest.
        daemon: String,
    },
    /// The guest took too long.
    #[error(
        "the guest was not done after {limit:?}\n{stderr}\n--- the guest's console ---\n{console}\n--- the daemon's log ---\n{daemon}"
    )]
    Timeout {
        /// The time that it was given.
        limit: Duration,
        /// What QEMU printed on standard error.
        stderr: String,
        /// The end of the console.
        console: String,
        /// What the daemon has logged since its start, or since its last guest.
        daemon: String,
    },
    /// The guest, its firmware or its boot loader hangs.
    #[error(
        "the guest printed nothing for {limit:?}\n{stderr}\n--- the guest's console ---\n{console}\n\
         --- the daemon's log ---\n{daemon}"
    )]
    Silent {
        /// The longest time without a line.
        limit: Duration,
        /// What QEMU printed on standard error.
        stderr: String,
        /// The end of the console.
        console: String,
        /// What the daemon has logged since its start, or since its last guest.
        daemon: String,
    },
    /// The guest's report lacks something, or two reports differ.
    #[error(
        "{what}\n--- the guest's console ---\n{console}\n--- the daemon's warnings ---\n{daemon}"
    )]
    Report {
        /// What is missing or different.
        what: String,
        /// The end of the console.
        console: String,
        /// What the daemon warned of.
        daemon: String,
    },
}

impl Error {
    /// For `map_err`: names what was being done.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// Of a guest that failed: with what its daemon has logged.
    pub(crate) fn with_daemon_log(mut self, log: &str) -> Self {
        if let Self::StepFailed { daemon, .. }
        | Self::GuestDied { daemon, .. }
        | Self::Timeout { daemon, .. }
        | Self::Silent { daemon, .. } = &mut self
        {
            *daemon = tail(log, DAEMON_LINES);
        }
        self
    }
}

/// The program's path: from `PATH`, or from the administrator's folders that `PATH` may lack.
///
/// # Errors
/// [`Error::MissingProgram`], which names the package.
pub(crate) fn find_program(program: &str, package: &'static str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| Error::MissingProgram {
            program: program.to_owned(),
            package,
        })
}

/// A program that every Debian has: its absence means another distribution.
///
/// # Errors
/// [`Error::NotDebian`], which names this one.
pub(crate) fn debian_program(program: &str) -> Result<PathBuf> {
    find_program(program, "apt dpkg").map_err(|_| {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let name = release
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let name = name.unwrap_or("an unknown system").trim_matches('"');
        Error::NotDebian {
            found: format!("{name}, without `{program}`"),
        }
    })
}

/// Runs a helper to its end and returns its standard output.
///
/// # Errors
/// [`Error::Io`] if it cannot start, [`Error::CommandFailed`] if its status is not 0.
pub(crate) fn run(command: &mut std::process::Command) -> Result<Vec<u8>> {
    let shown = format!("{command:?}");
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(Error::io(format!("start {shown}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Err(Error::CommandFailed {
        command: shown,
        status: output.status,
        output: tail(&text, 30),
    })
}

/// The last `lines` lines.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
