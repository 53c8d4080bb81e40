//! Paths of the programs that are measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// The blockplane to measure: `given`, else `BLOCKPLANE_BIN`, else the one beside this program; for a test, one that is
/// built now, optimised as the test is.
///
/// # Errors
/// [`Error::Unsuitable`] when there is none and it cannot be built.
pub fn blockplane(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os("BLOCKPLANE_BIN") {
        return Ok(PathBuf::from(path));
    }
    let ours = std::env::current_exe().map_err(Error::io("find this program"))?;
    if let Some(profile) = folder_of_tests(&ours) {
        return build(profile);
    }
    let beside = ours.with_file_name(DAEMON);
    match beside.is_file() {
        true => Ok(beside),
        false => Err(Error::Unsuitable(format!(
            "there is no {} to measure: name one with --server PATH or BLOCKPLANE_BIN",
            beside.display()
        ))),
    }
}

const DAEMON: &str = "blockplane";

/// Of a test of cargo's, `target/PROFILE/deps/TEST`, the profile's folder.
fn folder_of_tests(ours: &Path) -> Option<&Path> {
    let deps = ours.parent()?;
    (deps.file_name()? == "deps").then(|| deps.parent())?
}

/// Has cargo build it into the folder of a profile.
fn build(profile: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", DAEMON]);
    if let Some(target) = profile.parent() {
        build.arg("--target-dir").arg(target);
    }
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    match build.status() {
        Ok(status) if status.success() => Ok(profile.join(DAEMON)),
        outcome => Err(Error::Unsuitable(format!(
            "blockplane cannot be built ({outcome:?}): name one with --server PATH"
        ))),
    }
}

/// A program of this name in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
