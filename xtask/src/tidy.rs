//! `cargo xtask tidy`: rules of style and structure for sources and documents, as a ratchet.
//!
//! Each rule makes findings. A finding that was there when its rule came is an exception in `xtask/tidy.toml`, with a
//! number: how many lines are too long, how often a word is written. Less than that number is an error as well, so
//! that exceptions only become fewer. The folder `tidy` has a file for each rule.

mod circles;
mod dead_files;
mod exceptions;
mod floors;
mod headers;
mod lengths;
mod manifest;
mod modules;
mod scan;
mod settings;
mod tokens;
mod tree;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::root;
use exceptions::Exceptions;
use modules::Modules;
use settings::Settings;
use tree::Tree;

/// Settings and exceptions, relative to the repository's root.
const FILE: &str = "xtask/tidy.toml";

const USAGE: &str = "\
usage: cargo xtask tidy [--update | --record | --circles]

Checks rules of style and structure, in tracked files. xtask/tidy.toml lists words, the floors of crates,
and exceptions.

  --update   lower the exceptions to what is still there, and remove those that no longer apply; add none
  --record   write all exceptions anew: only when a rule is new
  --circles  print the circles of modules, and the uses that make them
";

/// A place that breaks a rule.
#[derive(Debug)]
struct Finding {
    rule: &'static str,
    /// The subject of an exception: a file, or something of a file.
    subject: String,
    /// How bad it is; an exception allows as much.
    number: usize,
    path: String,
    line: usize,
    /// The error, and what to do.
    text: String,
}

/// Numbers of lines as text, the first of them if there are many.
fn listed(lines: &[usize]) -> String {
    let numbers: Vec<String> = lines.iter().take(20).map(usize::to_string).collect();
    let more = if numbers.len() < lines.len() {
        ", …"
    } else {
        ""
    };
    let plural = if lines.len() == 1 { "" } else { "s" };
    format!("line{plural} {}{more}", numbers.join(", "))
}

/// `cargo xtask tidy …`.
pub(crate) fn tidy(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let option = arguments.next();
    let result = match (option.as_deref(), arguments.next()) {
        (None, None) => check(),
        (Some("--update"), None) => rewrite(Exceptions::lowered),
        (Some("--record"), None) => rewrite(|_, findings| Exceptions::of(findings)),
        (Some("--circles"), None) => Source::read(&root()).map(|source| {
            eprint!("{}", circles::report(&source.modules));
        }),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(errors) => {
            eprintln!("{errors}");
            ExitCode::FAILURE
        }
    }
}

/// Checks all rules. The error is a line for each violation, and their count.
pub(crate) fn check() -> Result<(), String> {
    let source = Source::read(&root())?;
    let errors = source.exceptions.compare(&source.findings());
    match errors.len() {
        0 => Ok(()),
        count => Err(format!("{}\ntidy: {count} errors", errors.join("\n"))),
    }
}

/// Writes the exceptions anew, and checks by these.
fn rewrite(exceptions: impl Fn(&Exceptions, &[Finding]) -> Exceptions) -> Result<(), String> {
    let source = Source::read(&root())?;
    let exceptions = exceptions(&source.exceptions, &source.findings());
    let text = exceptions.write_into(&source.text);
    std::fs::write(&source.file, text).map_err(|error| format!("{FILE}: {error}"))?;
    check()
}

/// All that the rules look at.
struct Source {
    file: PathBuf,
    text: String,
    settings: Settings,
    exceptions: Exceptions,
    tree: Tree,
    packages: Vec<manifest::Package>,
    modules: Modules,
}

impl Source {
    fn read(root: &Path) -> Result<Self, String> {
        let file = root.join(FILE);
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{FILE}: {error}"))?;
        let tree = Tree::tracked(root)?;
        let packages = manifest::packages(&tree)?;
        Ok(Source {
            settings: Settings::parse(&text).map_err(|error| format!("{FILE}: {error}"))?,
            exceptions: Exceptions::parse(&text).map_err(|error| format!("{FILE}: {error}"))?,
            modules: Modules::new(&tree, &packages),
            file,
            text,
            tree,
            packages,
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(circles::check(&self.modules));
        findings.extend(dead_files::check(&self.modules));
        findings.extend(floors::check(&self.packages, &self.settings.floors));
        findings.extend(headers::check(&self.tree));
        findings.extend(lengths::check_files(&self.tree, &self.modules.product()));
        findings.extend(lengths::check_lines(&self.tree));
        findings.extend(words::check(&self.tree, &self.settings.words));
        findings
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::process::Command;

    use super::*;

    const SETTINGS: &str = r#"
floors = [["b"], ["a"]]
words = [{ word = "frob", also = ["frobs"], instead = "sent" }]

[exceptions.dead-files]
"b/dead.rs" = 1
"#;

    #[test]
    fn every_rule_is_checked() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write(FILE, SETTINGS);
        write("a/Cargo.toml", "[package]\nname = \"a\"\n");
        write(
            "b/Cargo.toml",
            "[package]\nname = \"b\"\n[dependencies]\na.path = \"../a\"\n",
        );
        write("a/src/lib.rs", "//! A header.\nmod c;\nmod d;\n");
        write(
            "a/src/c.rs",
            &format!("//! What.\n{}use crate::d;\n", "\n".repeat(500)),
        );
        write(
            "a/src/d.rs",
            &format!("//! It frobs.\nuse crate::c;\n// {}\n", "-".repeat(140)),
        );
        write("b/dead.rs", "//! A header.\n");
        for arguments in [&["init", "--quiet"][..], &["add", "."]] {
            let git = Command::new("git")
                .args(arguments)
                .current_dir(root)
                .status();
            assert!(git.is_ok_and(|status| status.success()), "{arguments:?}");
        }
        write("untracked.rs", "");

        let source = Source::read(root).expect("a tree");
        let findings = source.findings();
        let found: BTreeSet<(&str, &str)> = findings
            .iter()
            .map(|one| (one.rule, &one.subject[..]))
            .collect();
        let expected = [
            ("circles", "a/src/lib.rs"),
            ("circles", "a/src/lib.rs: c"),
            ("circles", "a/src/lib.rs: d"),
            ("dead-files", "b/dead.rs"),
            ("file-length", "a/src/c.rs"),
            ("floors", "b/Cargo.toml: a"),
            ("headers", "a/src/c.rs"),
            ("line-length", "a/src/d.rs"),
            ("words", "a/src/d.rs: frob"),
        ];
        assert_eq!(found, BTreeSet::from(expected));
        assert_eq!(
            source.exceptions.compare(&findings).len(),
            expected.len() - 1
        );
    }
}
