//! The Debian package, made of a blockplane that was built and of the files in `packaging/`.
//!
//! `dpkg-deb` packs what this module lays out as it is to be installed. Debian's helpers (debhelper) are
//! not used: they would bring a build of their own, and there is little here that they could find out.
//!
//! | where | what |
//! |---|---|
//! | `/usr/bin/blockplane`, `/usr/bin/blockplane-bench` | the programs, without symbols |
//! | `/usr/lib/systemd/system`, `sysusers.d`, `tmpfiles.d` | units, the user, the folders |
//! | `/usr/share/man`, and the shells' folders | what `generate` of each writes |
//! | `/etc/blockplane/blockplane.toml` | the administrator's, in which nothing is served yet |
//! | `/usr/share/doc/blockplane` | documents, the example of every key, the licenses, those of linked crates too |

mod contents;
mod control;
mod libraries;
mod notices;
mod tools;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use tools::run;

/// The files that were built.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'p> {
    /// `blockplane`
    pub daemon: &'p Path,
    /// `blockplane-bench`
    pub measuring: &'p Path,
}

/// Packs the programs and everything around them into a `.deb` in `folder`, and says where that is. `compression` are options of
/// dpkg-deb(1).
///
/// # Errors
/// A tool that is missing or fails, files that cannot be read or written, a program that needs a
/// library whose package is unknown, a changelog that does not know the version.
pub fn debian(programs: Programs, folder: &Path, compression: &[&str]) -> Result<PathBuf, String> {
    let root = tempfile::tempdir().map_err(cannot("make a temporary folder"))?;
    let root = root.path().join("root");
    contents::lay_out(programs, &root)?;
    let architecture = run("dpkg", &["--print-architecture"])?;
    let libraries = libraries::needed(&[programs.daemon, programs.measuring])?;
    control::write(&root, architecture.trim(), &libraries)?;
    std::fs::create_dir_all(folder).map_err(cannot(format!("make {}", folder.display())))?;
    let deb = folder.join(format!(
        "blockplane_{}_{}.deb",
        control::VERSION,
        architecture.trim()
    ));
    let (root, deb_path) = (root.display().to_string(), deb.display().to_string());
    let arguments = [
        &["--root-owner-group"],
        compression,
        &["--build", &root, &deb_path],
    ];
    run("dpkg-deb", &arguments.concat())?;
    Ok(deb)
}

/// An error that says what could not be done, and what the operating system says.
fn cannot(what: impl Display) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("cannot {what}: {error}")
}

/// A file of the project.
fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
