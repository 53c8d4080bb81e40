//! The files that are checked: tracked Rust sources, Markdown documents and manifests.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// Texts by path, relative to the repository's root.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// The tracked files of a repository, as they are on disk. Deleted ones are left out.
    pub(super) fn tracked(root: &Path) -> Result<Self, String> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--"]);
        git.args(["*.rs", "*.md", "Cargo.toml", "*/Cargo.toml"]);
        let output = git.current_dir(root).output();
        let output = output.map_err(|error| format!("cannot start git: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let mut files = BTreeMap::new();
        for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
            match std::fs::read_to_string(root.join(path)) {
                Ok(text) => _ = files.insert(path.to_owned(), text),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{path}: {error}")),
            }
        }
        Ok(Tree { files })
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let owned = |&(path, text): &(&str, &str)| (path.to_owned(), text.to_owned());
        Tree {
            files: files.iter().map(owned).collect(),
        }
    }

    /// All files whose names end so, with their texts.
    pub(super) fn ending_with(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        let files = self.files.iter();
        files
            .filter(move |(path, _)| path.ends_with(end))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }
}
