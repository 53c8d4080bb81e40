//! Programs that do the work.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::package::Error;

/// Runs a program to its end; what it wrote to standard output.
pub(crate) fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
) -> Result<String, Error> {
    run_in(Path::new("."), program, arguments)
}

/// The same in a folder.
pub(crate) fn run_in<S: AsRef<OsStr>>(
    folder: &Path,
    program: impl AsRef<OsStr>,
    arguments: &[S],
) -> Result<String, Error> {
    let mut command = Command::new(program);
    // The output is parsed, so it must not be localized.
    command
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C");
    let output = command.output().map_err(|source| Error::Missing {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if !output.status.success() {
        return Err(Error::Failed {
            command: format!("{command:?}"),
            status: output.status,
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
