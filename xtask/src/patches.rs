//! Patches of the project: changes to its own source that are built and run in a copy.
//!
//! Each begins with text that `git apply` skips: what it changes, then lines `Key: value`. A patch in
//! `experiments/patches` takes a mechanism out for a measurement; one below `planted` is a mistake that a test
//! must find.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

/// A patch, and what its text says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Its path below the folder of such patches, without the extension.
    pub name: String,
    pub path: PathBuf,
    text: String,
}

impl Patch {
    /// The lines before the first change.
    fn header(&self) -> impl Iterator<Item = &str> {
        let is_change = |line: &&str| line.starts_with("diff --git ") || line.starts_with("--- ");
        self.text.lines().take_while(move |line| !is_change(line))
    }

    /// The value of the line `KEY: VALUE`.
    pub fn field(&self, key: &str) -> Option<&str> {
        let mut header = self.header();
        let value = header.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        value.map(str::trim)
    }

    /// The first line of its text.
    pub fn summary(&self) -> &str {
        self.header().next().unwrap_or_default()
    }

    /// The files that it changes or adds, by their paths in the repository, as they are with it.
    pub fn changed_files(&self) -> Result<BTreeMap<PathBuf, String>, String> {
        self.changed_files_of(&root())
    }

    fn changed_files_of(&self, source: &Path) -> Result<BTreeMap<PathBuf, String>, String> {
        let scratch = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
        let paths = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("+++ b/"));
        let paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
        for path in &paths {
            copy_if_there(&source.join(path), &scratch.path().join(path)).map_err(at(path))?;
        }
        let mut git = Command::new("git");
        git.args(["apply", "--whitespace=nowarn"])
            .arg(fs::canonicalize(&self.path).map_err(at(&self.path))?);
        // In a folder of a repository, `git apply` would change nothing and succeed.
        if let Some(parent) = scratch.path().parent() {
            git.env("GIT_CEILING_DIRECTORIES", parent);
        }
        let output = git.current_dir(scratch.path()).output();
        let output = output.map_err(|error| format!("cannot start git: {error}"))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("does not apply: {}", reason.trim()));
        }
        let read = |path: PathBuf| {
            let text = fs::read_to_string(scratch.path().join(&path)).map_err(at(&path))?;
            Ok((path, text))
        };
        paths.into_iter().map(read).collect()
    }
}

fn copy_if_there(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::copy(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        copied => copied.map(drop),
    }
}

/// All patches of a folder and of the folders in it, by name.
pub(crate) fn all(folder: &Path) -> Result<Vec<Patch>, String> {
    let mut patches = Vec::new();
    add_patches(folder, "", &mut patches)?;
    patches.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(patches)
}

fn add_patches(folder: &Path, above: &str, patches: &mut Vec<Patch>) -> Result<(), String> {
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{above}{name}");
        if path.is_dir() {
            add_patches(&path, &format!("{name}/"), patches)?;
        } else if path.extension().is_some_and(|ending| ending == "patch") {
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            patches.push(Patch { name, path, text });
        }
    }
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// The patches of experiments.
pub(crate) fn experiments() -> Result<Vec<Patch>, String> {
    all(&root().join("experiments/patches"))
}

/// What is wrong with the patches of experiments: one does not apply, or does not say what compares it.
pub(crate) fn errors_of_experiments() -> Result<Vec<String>, String> {
    let mut errors = Vec::new();
    for patch in experiments()? {
        if patch.field("Experiment").is_none() {
            errors.push(format!("{}: no line 'Experiment: …'", patch.path.display()));
        }
        if let Err(error) = patch.changed_files() {
            errors.push(format!("{}: {error}", patch.path.display()));
        }
    }
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "\
Flushes are not waited for.

Finds: cargo test -p block flush

diff --git a/a b/a
--- a/a
+++ b/a
@@ -1 +1 @@
-Finds: one
+Finds: other
diff --git a/new/c b/new/c
new file mode 100644
--- /dev/null
+++ b/new/c
@@ -0,0 +1 @@
+three
";

    #[test]
    fn a_patch_has_a_summary_fields_and_changed_files() {
        let source = tempfile::tempdir().expect("a folder");
        let at = |name: &str| source.path().join(name);
        fs::create_dir(at("planted")).expect("a folder");
        fs::write(at("planted/p.patch"), PATCH).expect("a patch");
        fs::write(at("a"), "Finds: one\n").expect("a file");
        let patches = all(source.path()).expect("patches");
        let patch = patches
            .iter()
            .find(|patch| patch.name == "planted/p")
            .expect("it is there");
        assert_eq!(patch.summary(), "Flushes are not waited for.");
        assert_eq!(patch.field("Finds"), Some("cargo test -p block flush"));
        assert_eq!(patch.field("Find"), None);
        let changed = patch.changed_files_of(source.path()).expect("applies");
        let expected = [("a", "Finds: other\n"), ("new/c", "three\n")];
        let expected = expected.map(|(path, text)| (path.into(), text.to_owned()));
        assert_eq!(changed, expected.into());
        fs::write(at("a"), "Finds: none\n").expect("a file");
        assert!(patch.changed_files_of(source.path()).is_err());
    }
}
