//! `cargo xtask tidy`: rules of style and structure that rustfmt and clippy do not have. The folder `tidy` has a file for each.

mod circles;
mod floors;
mod headers;
mod lengths;
mod modules;
mod packages;
mod scan;
pub(crate) mod tokens;
mod words;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use crate::root;
use modules::Modules;

/// Texts of files by path, relative to the repository's root.
type Files = BTreeMap<String, String>;

/// Checks all rules. The error is a line for each violation.
pub(crate) fn check() -> Result<(), String> {
    let root = root().canonicalize().map_err(|error| error.to_string())?;
    let files = tracked_files(&root)?;
    let packages = packages::packages(&root, &files)?;
    let modules = Modules::new(&files, packages.iter().flat_map(|package| &package.roots));
    let mut errors = circles::check(&modules);
    errors.extend(floors::check(&packages));
    errors.extend(headers::check(&files));
    errors.extend(lengths::check(&files, &modules.product()));
    errors.extend(modules.unreached().map(|file| {
        format!("{file}:1: no target reaches this file; declare it as a module, or delete it")
    }));
    errors.extend(words::check(&files));
    match errors.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{}\ntidy: {} errors\n",
            errors.join("\n"),
            errors.len()
        )),
    }
}

/// The tracked Rust sources, documents and manifests of a repository, as they are on disk.
fn tracked_files(root: &Path) -> Result<Files, String> {
    let mut git = Command::new("git");
    git.args([
        "ls-files",
        "-z",
        "--",
        "*.rs",
        "*.md",
        "Cargo.toml",
        "*/Cargo.toml",
    ]);
    let output = git.current_dir(root).output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut files = Files::new();
    for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
        match std::fs::read_to_string(root.join(path)) {
            Ok(text) => _ = files.insert(path.to_owned(), text),
            // Deleted, and still tracked.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{path}: {error}")),
        }
    }
    Ok(files)
}

/// The files whose names end so, with their texts.
fn ending_with<'f>(files: &'f Files, end: &str) -> impl Iterator<Item = (&'f str, &'f str)> {
    let files = files.iter().filter(move |(path, _)| path.ends_with(end));
    files.map(|(path, text)| (path.as_str(), text.as_str()))
}

#[cfg(test)]
fn files(files: &[(&str, &str)]) -> Files {
    let owned = |&(path, text): &(&str, &str)| (path.to_owned(), text.to_owned());
    files.iter().map(owned).collect()
}
