//! A copy of the source below the target folder, in which some files differ, with a build folder of its own.
//!
//! Only files that have to change are written, so that cargo compiles no more than these.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::patches::Patch;
use crate::root;

pub(crate) struct SourceCopy {
    folder: PathBuf,
    build: PathBuf,
    /// Locked: no other run patches the copy meanwhile.
    _lock: File,
}

impl SourceCopy {
    /// In `target/NAME`; [`apply`](Self::apply) or [`write`](Self::write) fills it. Waits for another run that uses it.
    pub fn new(name: &str) -> Result<Self, String> {
        let place = guest::target_dir().join(name);
        let (folder, build) = (place.join("tree"), place.join("build"));
        for folder in [&folder, &build] {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        let lock = File::create(place.join("lock")).map_err(at(&place))?;
        lock.lock().map_err(at(&place))?;
        Ok(SourceCopy {
            folder,
            build,
            _lock: lock,
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where cargo builds: for `CARGO_TARGET_DIR`.
    pub fn build(&self) -> &Path {
        &self.build
    }

    /// The source with a patch.
    pub fn apply(&self, patch: &Patch) -> Result<(), String> {
        self.write(&patch.changed_files()?)
    }

    /// The source as it is now, changes that are not committed included, but for the files in `changed`.
    pub fn write(&self, changed: &BTreeMap<PathBuf, String>) -> Result<(), String> {
        let mut files = files_of_source()?;
        files.retain(|file| !changed.contains_key(file));
        let expected = files.iter().chain(changed.keys());
        let expected: HashSet<&Path> = expected.map(PathBuf::as_path).collect();
        remove_others(&self.folder, Path::new(""), &expected).map_err(at(&self.folder))?;
        for file in &files {
            let to = self.folder.join(file);
            let content = fs::read(root().join(file)).map_err(at(file))?;
            write_if_different(&content, &to).map_err(at(&to))?;
        }
        for (file, text) in changed {
            let to = self.folder.join(file);
            write_if_different(text.as_bytes(), &to).map_err(at(&to))?;
        }
        Ok(())
    }
}

/// What git knows, and what it would if all were added.
fn files_of_source() -> Result<Vec<PathBuf>, String> {
    let mut git = Command::new("git");
    git.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let output = git.current_dir(root()).output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git ls-files: {}", reason.trim()));
    }
    let names = output.stdout.split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let files = names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)));
    // A file that was removed is in the index until the next commit.
    Ok(files.filter(|file| root().join(file).exists()).collect())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Removes the files below `folder` that are not expected there.
fn remove_others(folder: &Path, below: &Path, expected: &HashSet<&Path>) -> io::Result<()> {
    for entry in fs::read_dir(folder.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(folder, &path, expected)?;
        } else if !expected.contains(path.as_path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// So that its time changes only if it does.
fn write_if_different(content: &[u8], to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|there| there == content) {
        return Ok(());
    }
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(to, content)
}
