//! A copy of the source below the target folder, which patches are applied to, with a build folder of its own.
//!
//! Only files that differ are written, so that cargo compiles what a patch has changed and no more.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::patches::{self, Patch};
use crate::root;

pub(crate) struct SourceCopy {
    source: PathBuf,
    folder: PathBuf,
    build: PathBuf,
    /// Locked: no other run patches the copy meanwhile.
    _lock: File,
}

impl SourceCopy {
    /// In `target/NAME`, as the source is now, changes that are not committed included. Waits for another run that uses it.
    pub fn new(name: &str) -> Result<Self, String> {
        Self::of(&root(), &guest::target_dir().join(name))
    }

    fn of(source: &Path, place: &Path) -> Result<Self, String> {
        let (folder, build) = (place.join("tree"), place.join("build"));
        for folder in [&folder, &build] {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        let lock = place.join("lock");
        let copy = SourceCopy {
            source: source.to_owned(),
            folder,
            build,
            _lock: locked(&lock).map_err(at(&lock))?,
        };
        copy.reset()?;
        Ok(copy)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where cargo builds: for `CARGO_TARGET_DIR`.
    pub fn build(&self) -> &Path {
        &self.build
    }

    /// Undoes all patches.
    pub fn reset(&self) -> Result<(), String> {
        let files = self.files()?;
        let expected: HashSet<&Path> = files.iter().map(PathBuf::as_path).collect();
        remove_others(&self.folder, Path::new(""), &expected).map_err(at(&self.folder))?;
        for file in &files {
            let (from, to) = (self.source.join(file), self.folder.join(file));
            copy_if_different(&from, &to).map_err(at(&to))?;
        }
        Ok(())
    }

    /// Resets it, then applies a patch.
    pub fn apply(&self, patch: &Patch) -> Result<(), String> {
        self.reset()?;
        patches::apply(patch, &self.folder, &[])
    }

    /// What git knows, and what it would if all were added.
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let mut git = Command::new("git");
        git.args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let output = git.current_dir(&self.source).output();
        let output = output.map_err(|error| format!("cannot start git: {error}"))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("git ls-files: {}", reason.trim()));
        }
        let names = output.stdout.split(|byte| *byte == 0);
        let names = names.filter(|name| !name.is_empty());
        let files = names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)));
        // A file that was removed is in the index until the next commit.
        Ok(files
            .filter(|file| self.source.join(file).exists())
            .collect())
    }
}

/// A file that is locked until it is dropped.
fn locked(path: &Path) -> io::Result<File> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!(
                "waiting for another run, which has locked {}",
                path.display()
            );
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    Ok(file)
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

fn copy_if_different(from: &Path, to: &Path) -> io::Result<()> {
    let same = match fs::read(to) {
        Ok(there) => there == fs::read(from)?,
        Err(_) => false,
    };
    if same {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    // With its permissions, and with a time that cargo takes for a change.
    fs::copy(from, to).map(drop)
}

#[cfg(test)]
mod tests {
    use test_support::deadline::eventually;

    use super::*;

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let mut git = Command::new("git");
        git.args(["init", "--quiet"]).current_dir(folder.path());
        assert!(git.status().is_ok_and(|status| status.success()));
        folder
    }

    #[test]
    fn a_reset_undoes_a_patch_and_touches_nothing_else() {
        let source = repository();
        let at = |name: &str| source.path().join(name);
        fs::write(at(".gitignore"), "/target\n").expect("a file");
        for name in ["a", "b"] {
            fs::write(at(name), "one\n").expect("a file");
        }
        fs::write(
            at("p.patch"),
            "Both.\n\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n\
             diff --git a/new/c b/new/c\nnew file mode 100644\n--- /dev/null\n+++ b/new/c\n@@ -0,0 +1 @@\n+three\n",
        )
        .expect("a patch");
        let patches = patches::all(source.path()).expect("patches");
        let copy = SourceCopy::of(source.path(), &at("target/x")).expect("a copy");
        let read = |name: &str| fs::read_to_string(copy.folder().join(name)).ok();
        let modified = |name: &str| {
            let metadata = fs::metadata(copy.folder().join(name)).expect("a file");
            metadata.modified().expect("a time")
        };
        let before = modified("b");
        copy.apply(&patches[0]).expect("applied");
        assert_eq!(read("a").as_deref(), Some("two\n"));
        assert_eq!(read("new/c").as_deref(), Some("three\n"));
        fs::write(at("d"), "not committed\n").expect("a file");
        copy.reset().expect("reset");
        assert_eq!(read("a").as_deref(), Some("one\n"));
        assert_eq!(read("new/c"), None);
        assert_eq!(read("d").as_deref(), Some("not committed\n"));
        assert_eq!(modified("b"), before, "it would be compiled again");
    }

    #[test]
    fn a_copy_is_used_by_one_run_at_a_time() {
        let repository = repository();
        let place = repository.path().join("target/x");
        let copy = SourceCopy::of(repository.path(), &place).expect("a copy");
        let other = File::open(place.join("lock")).expect("a file");
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(copy);
        // A process that another test starts has the lock until it executes its program.
        eventually("it is unlocked", || other.try_lock().is_ok());
    }
}
