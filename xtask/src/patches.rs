//! Patches of the project: changes to its own source that are built and run in a copy.
//!
//! Each begins with text that `git apply` skips: what it changes, then lines `Key: value`. A patch in
//! `experiments/patches` takes a mechanism out for a measurement; one in `planted` is a mistake that a test
//! must find.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

/// A patch, and what its text says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Its file name without the extension.
    pub name: String,
    pub path: PathBuf,
    /// The lines before the first change.
    header: Vec<String>,
}

impl Patch {
    fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(Self::parse(
            &name,
            path.to_owned(),
            &String::from_utf8_lossy(&text),
        ))
    }

    fn parse(name: &str, path: PathBuf, text: &str) -> Self {
        let is_change = |line: &&str| line.starts_with("diff --git ") || line.starts_with("--- ");
        let header = text.lines().take_while(|line| !is_change(line));
        Patch {
            name: name.to_owned(),
            path,
            header: header.map(str::to_owned).collect(),
        }
    }

    /// The value of the line `KEY: VALUE`.
    pub fn field(&self, key: &str) -> Option<&str> {
        let value = |line: &'_ String| -> Option<usize> {
            let rest = line.strip_prefix(key)?.strip_prefix(": ")?;
            Some(line.len() - rest.len())
        };
        let found = self
            .header
            .iter()
            .find_map(|line| Some((line, value(line)?)));
        found.map(|(line, start)| line[start..].trim())
    }

    /// The first line of its text.
    pub fn summary(&self) -> &str {
        self.header.first().map_or("", String::as_str)
    }
}

/// All patches of a folder by name; none when there is no such folder.
pub(crate) fn all(folder: &Path) -> Result<Vec<Patch>, String> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| format!("{}: {error}", folder.display()))?,
    };
    let mut patches = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| format!("{}: {error}", folder.display()))?
            .path();
        if path
            .extension()
            .is_some_and(|extension| extension == "patch")
        {
            patches.push(Patch::read(&path)?);
        }
    }
    patches.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(patches)
}

/// The patch of that name.
pub(crate) fn named<'p>(patches: &'p [Patch], name: &str) -> Result<&'p Patch, String> {
    let found = patches.iter().find(|patch| patch.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = patches.iter().map(|patch| patch.name.as_str()).collect();
        format!("there is no patch '{name}'; there are {}", names.join(", "))
    })
}

/// The patches of experiments.
pub(crate) fn experiments() -> Result<Vec<Patch>, String> {
    all(&root().join("experiments/patches"))
}

/// Planted mistakes.
pub(crate) fn planted_folder() -> PathBuf {
    root().join("planted")
}

/// Applies a patch in a folder, or only finds out whether it applies.
pub(crate) fn apply(patch: &Patch, folder: &Path, options: &[&str]) -> Result<(), String> {
    let path = fs::canonicalize(&patch.path).unwrap_or_else(|_| patch.path.clone());
    let mut git = Command::new("git");
    git.args(["apply", "--whitespace=nowarn"]).args(options);
    git.arg(path).current_dir(folder);
    // A copy below the target folder is no part of the repository around it, where `git apply` would change nothing.
    if let Some(parent) = fs::canonicalize(folder)
        .ok()
        .as_deref()
        .and_then(Path::parent)
    {
        git.env("GIT_CEILING_DIRECTORIES", parent);
    }
    let output = git
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Whether all patches apply to the source as it is, and say what they are for.
pub(crate) fn check() -> Result<(), String> {
    let (experiments, planted) = (experiments()?, all(&planted_folder())?);
    let mut errors = Vec::new();
    for (patches, key) in [(experiments, "Experiment"), (planted, "Finds")] {
        for patch in patches {
            if patch.field(key).is_none() {
                errors.push(format!("{}: no line '{key}: …'", patch.path.display()));
            }
            if let Err(error) = apply(&patch, &root(), &["--check"]) {
                errors.push(format!("{}: does not apply: {error}", patch.path.display()));
            }
        }
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors.join("\n")),
    }
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
";

    #[test]
    fn a_header_has_a_summary_and_fields() {
        let patch = Patch::parse("p", "p.patch".into(), PATCH);
        assert_eq!(patch.summary(), "Flushes are not waited for.");
        assert_eq!(patch.field("Finds"), Some("cargo test -p block flush"));
        assert_eq!(patch.field("Find"), None);
        let bare = Patch::parse("p", "p.patch".into(), "--- a/a\nFinds: x\n");
        assert_eq!((bare.summary(), bare.field("Finds")), ("", None));
    }

    /// `git apply` below a repository changes nothing and succeeds, unless it knows where to stop.
    #[test]
    fn a_patch_is_applied_below_a_repository() {
        let repository = tempfile::tempdir().expect("a folder");
        let git = Command::new("git")
            .args(["init", "--quiet"])
            .current_dir(repository.path())
            .status();
        assert!(git.is_ok_and(|status| status.success()));
        let copy = repository.path().join("target/copy");
        fs::create_dir_all(&copy).expect("a copy");
        fs::write(copy.join("a"), "Finds: one\n").expect("a file");
        let path = repository.path().join("p.patch");
        fs::write(&path, PATCH).expect("a patch");
        let patch = Patch::read(&path).expect("a patch");
        apply(&patch, &copy, &["--check"]).expect("applies");
        apply(&patch, &copy, &[]).expect("applies");
        let changed = fs::read_to_string(copy.join("a")).expect("a file");
        assert_eq!(changed, "Finds: other\n");
        assert!(apply(&patch, &copy, &["--check"]).is_err(), "not twice");
    }
}
