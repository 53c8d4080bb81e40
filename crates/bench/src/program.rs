//! Which programs are measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// The blockplane to measure: `given`, else `BLOCKPLANE_BIN`, else this very program, whatever its
/// name; but when this is only the measuring without the daemon (the crate's own program, or a test), one
/// that is built now, optimised as this program is.
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
    if has_daemon(&ours) {
        return Ok(ours);
    }
    // target/PROFILE/bench, or target/PROFILE/deps/TEST
    let profile = ours
        .ancestors()
        .skip(1)
        .find(|folder| folder.file_name().is_some_and(|name| name != "deps"));
    let (Some(profile), Some(target)) = (profile, profile.and_then(Path::parent)) else {
        return Err(Error::Unsuitable(
            "which blockplane? name it with --server PATH".to_owned(),
        ));
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--quiet",
        "--package",
        "blockplane",
        "--target-dir",
    ]);
    build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    match build.status() {
        Ok(status) if status.success() => Ok(profile.join("blockplane")),
        outcome => Err(Error::Unsuitable(format!(
            "blockplane cannot be built ({outcome:?}): name one with --server PATH"
        ))),
    }
}

/// Whether this program is more than cargo's target/PROFILE/bench, or target/PROFILE/deps/TEST.
fn has_daemon(ours: &Path) -> bool {
    let in_deps = ours.parent().and_then(Path::file_name) == Some("deps".as_ref());
    !in_deps && ours.file_name() != Some(env!("CARGO_PKG_NAME").as_ref())
}

/// A program of this name in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_under_any_name_is_measured_as_it_is() {
        for name in ["/usr/bin/blockplane", "/opt/blockplane-0.1", "/usr/bin/bp"] {
            assert!(has_daemon(name.as_ref()), "{name}");
        }
        for name in [
            "/src/target/release/bench",
            "/src/target/debug/deps/smoke-1f",
        ] {
            assert!(!has_daemon(name.as_ref()), "{name}");
        }
    }
}
