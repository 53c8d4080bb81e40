//! Module trees: the files that each target consists of, found as the compiler finds them.

use std::collections::{BTreeMap, BTreeSet};

use super::scan::{Declaration, Scan, scan};
use super::{Files, ending_with};

/// All Rust files, scanned, and the targets that they belong to.
#[derive(Debug)]
pub(super) struct Modules {
    pub(super) scans: BTreeMap<String, Scan>,
    pub(super) targets: Vec<Target>,
}

/// A target: a library, a program, a test or an example.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) root: String,
    pub(super) modules: Vec<Module>,
}

/// A file as a module of a target.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) file: String,
    /// The names from the root, which has none.
    pub(super) path: Vec<String>,
    /// It is compiled for unit tests only.
    pub(super) test: bool,
}

impl Modules {
    /// The targets that begin with these files.
    pub(super) fn new<'r>(files: &Files, roots: impl IntoIterator<Item = &'r String>) -> Self {
        let files = ending_with(files, ".rs");
        let scans = files
            .map(|(path, text)| (path.to_owned(), scan(text)))
            .collect();
        let roots = roots.into_iter();
        let targets = roots.map(|root| target(&scans, root)).collect();
        Modules { scans, targets }
    }

    /// Files of product code: neither below a folder `tests` nor compiled for unit tests only.
    pub(super) fn product(&self) -> BTreeSet<&str> {
        let modules = self.targets.iter().flat_map(|target| &target.modules);
        let product = modules
            .filter(|module| !module.test)
            .map(|module| module.file.as_str());
        product
            .filter(|file| !file.split('/').any(|part| part == "tests"))
            .collect()
    }

    /// Files that are in no target.
    pub(super) fn unreached(&self) -> impl Iterator<Item = &str> {
        let modules = self.targets.iter().flat_map(|target| &target.modules);
        let reached: BTreeSet<&str> = modules.map(|module| module.file.as_str()).collect();
        let files = self.scans.keys().map(String::as_str);
        files.filter(move |&file| !reached.contains(file))
    }
}

fn target(scans: &BTreeMap<String, Scan>, root: &str) -> Target {
    let mut target = Target {
        root: root.to_owned(),
        modules: Vec::new(),
    };
    let (folder, _) = split(root);
    visit(scans, root, folder, Vec::new(), false, &mut target.modules);
    target
}

/// Adds a file and what it declares. `folder` is where the files of its modules are.
fn visit(
    scans: &BTreeMap<String, Scan>,
    file: &str,
    folder: &str,
    path: Vec<String>,
    test: bool,
    modules: &mut Vec<Module>,
) {
    let Some(scan) = scans.get(file) else {
        return;
    };
    let module = Module {
        file: file.to_owned(),
        path: path.clone(),
        test,
    };
    if modules.contains(&module) {
        return;
    }
    modules.push(module);
    for declared in scan.modules.iter().filter(|declared| !declared.inline) {
        for (file, folder) in candidates(file, folder, declared) {
            let path = [&path[..], &declared.path].concat();
            visit(scans, &file, &folder, path, test || declared.test, modules);
        }
    }
}

/// The files that may hold a declared module, each with the folder of its own modules.
fn candidates(file: &str, folder: &str, declared: &Declaration) -> Vec<(String, String)> {
    let (name, around) = declared.path.split_last().expect("a module has a name");
    if let Some(path) = &declared.file {
        // In an inline module the path begins where a file of that module would be.
        let (own_folder, _) = split(file);
        let base = if around.is_empty() {
            own_folder
        } else {
            folder
        };
        let file = join(
            base,
            around.iter().map(String::as_str).chain(path.split('/')),
        );
        let folder = split(&file).0.to_owned();
        return vec![(file, folder)];
    }
    let inside = join(
        folder,
        around.iter().map(String::as_str).chain([name.as_str()]),
    );
    vec![
        (format!("{inside}.rs"), inside.clone()),
        (format!("{inside}/mod.rs"), inside),
    ]
}

/// Folder and name of a file.
fn split(file: &str) -> (&str, &str) {
    file.rsplit_once('/').unwrap_or(("", file))
}

fn join<'p>(folder: &'p str, parts: impl Iterator<Item = &'p str>) -> String {
    let mut joined: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in parts {
        match part {
            ".." => _ = joined.pop(),
            "." => {}
            part => joined.push(part),
        }
    }
    joined.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files;

    #[test]
    fn modules_are_found_where_the_compiler_finds_them() {
        let files = files(&[
            ("a/src/lib.rs", "mod b;\nmod c;\nmod inline { mod d; }\n"),
            (
                "a/src/b.rs",
                "mod deep;\n#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod tests;\n",
            ),
            ("a/src/b/deep.rs", ""),
            ("a/src/b_tests.rs", "mod part;\n"),
            ("a/src/part.rs", ""),
            ("a/src/c/mod.rs", "mod e;\n"),
            ("a/src/c/e.rs", ""),
            ("a/src/inline/d.rs", ""),
            ("a/src/dead.rs", "mod b;"),
            ("a/src/b/e.rs", ""),
            ("a/tests/t.rs", "#[path = \"../src/c/e.rs\"]\nmod e;\n"),
        ]);
        let roots = ["a/src/lib.rs", "a/tests/t.rs"].map(str::to_owned);
        let modules = Modules::new(&files, &roots);
        let unreached: Vec<&str> = modules.unreached().collect();
        assert_eq!(unreached, ["a/src/b/e.rs", "a/src/dead.rs"]);
        let lib = modules.targets[0].modules.iter();
        let paths: Vec<String> = lib.map(|module| module.path.join("::")).collect();
        let expected = [
            "",
            "b",
            "b::deep",
            "b::tests",
            "b::tests::part",
            "c",
            "c::e",
            "inline::d",
        ];
        assert_eq!(paths, expected);
        let product: Vec<&str> = modules.product().into_iter().collect();
        let expected = [
            "b.rs",
            "b/deep.rs",
            "c/e.rs",
            "c/mod.rs",
            "inline/d.rs",
            "lib.rs",
        ];
        assert_eq!(product, expected.map(|file| format!("a/src/{file}")));
    }
}
