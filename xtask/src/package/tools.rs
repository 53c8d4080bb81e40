//! Programs that do the work, and files.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::package::cannot;

/// Runs a program to its end; what it wrote to standard output.
pub(crate) fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: &[S],
) -> Result<String, String> {
    run_in(Path::new("."), program, arguments)
}

/// The same in a folder.
pub(crate) fn run_in<S: AsRef<OsStr>>(
    folder: &Path,
    program: impl AsRef<OsStr>,
    arguments: &[S],
) -> Result<String, String> {
    let mut command = Command::new(program);
    // The output is parsed, so it must not be localized.
    command
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C");
    let output = command.output().map_err(|error| {
        let program = command.get_program().display();
        format!("`{program}` cannot be run ({error}): apt-get install dpkg binutils gzip coreutils")
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{command:?}` failed ({})\n{said}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Gives a file or folder a mode.
pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.map_err(cannot(format!("set the mode of {}", path.display())))
}

/// What is in a folder, sorted.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = || cannot(format!("read {}", folder.display()));
    let entries = fs::read_dir(folder).map_err(failed())?;
    let paths = entries.map(|entry| Ok(entry.map_err(failed())?.path()));
    let mut paths = paths.collect::<Result<Vec<_>, String>>()?;
    paths.sort();
    Ok(paths)
}
