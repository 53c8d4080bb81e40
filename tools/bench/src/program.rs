//! Paths of the programs that are measured.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The blockplane to measure: `given`, else `BLOCKPLANE_BIN`, else the one beside this program.
///
/// # Errors
/// [`Error::Unsuitable`] when there is none.
pub fn blockplane(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os("BLOCKPLANE_BIN") {
        return Ok(PathBuf::from(path));
    }
    let ours = std::env::current_exe().map_err(Error::io("find this program"))?;
    // Tests are in a folder of their own, `target/PROFILE/deps`.
    let folders = ours.ancestors().skip(1).take(2);
    let mut programs = folders.map(|folder| folder.join("blockplane"));
    programs.find(|program| program.is_file()).ok_or_else(|| {
        Error::Unsuitable(
            "there is no blockplane beside this program: build it, or name one with --server PATH or BLOCKPLANE_BIN"
                .to_owned(),
        )
    })
}

/// A program of this name in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
