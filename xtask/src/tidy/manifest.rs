//! Packages: their targets and dependencies, from `Cargo.toml`.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::tree::Tree;

/// A package.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    /// The path of its `Cargo.toml`.
    pub(super) manifest: String,
    /// The roots of its targets: paths that exist.
    pub(super) roots: Vec<String>,
    /// What it is built with, tests aside: names of packages, and lines of the manifest.
    pub(super) dependencies: BTreeMap<String, usize>,
}

/// The packages of all workspaces.
pub(super) fn packages(tree: &Tree) -> Result<Vec<Package>, String> {
    let manifests = tree.ending_with("Cargo.toml");
    let read = manifests.map(|(path, text)| {
        let read = package(tree, path, text);
        read.map_err(|error| format!("{path}: {error}"))
    });
    read.filter_map(Result::transpose).collect()
}

/// The package of a manifest; none if it is a workspace's only.
fn package(tree: &Tree, manifest: &str, text: &str) -> Result<Option<Package>, toml::de::Error> {
    let document = DeTable::parse(text)?;
    let document = document.get_ref();
    let Some(package) = table(document, "package") else {
        return Ok(None);
    };
    let name = package.get("name").and_then(|name| name.get_ref().as_str());
    let folder = manifest.trim_end_matches("Cargo.toml");
    let mut roots: Vec<String> = tree
        .ending_with(".rs")
        .filter_map(|(path, _)| path.strip_prefix(folder))
        .filter(|path| is_found_by_cargo(path))
        .map(str::to_owned)
        .collect();
    let lib = table(document, "lib");
    let arrays = ["bin", "test", "example", "bench"];
    let arrays = arrays
        .iter()
        .filter_map(|&kind| document.get(kind)?.get_ref().as_array());
    let targets =
        arrays.flat_map(|targets| targets.iter().filter_map(|one| one.get_ref().as_table()));
    let paths = lib
        .into_iter()
        .chain(targets)
        .filter_map(|target| target.get("path"));
    roots.extend(paths.filter_map(|path| path.get_ref().as_str().map(str::to_owned)));
    roots.sort();
    roots.dedup();
    Ok(Some(Package {
        name: name.unwrap_or_default().to_owned(),
        manifest: manifest.to_owned(),
        roots: roots.iter().map(|root| format!("{folder}{root}")).collect(),
        dependencies: dependencies(document, text),
    }))
}

fn table<'t, 'd>(parent: &'t DeTable<'d>, key: &str) -> Option<&'t DeTable<'d>> {
    parent.get(key)?.get_ref().as_table()
}

/// Whether cargo takes a file of a package for a target by itself.
fn is_found_by_cargo(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let targets = ["tests", "examples", "benches"];
    match parts[..] {
        ["build.rs"] => true,
        ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", _] | ["src", "bin", _, "main.rs"] => true,
        [folder, _] | [folder, _, "main.rs"] => targets.contains(&folder),
        _ => false,
    }
}

/// The dependencies of a package that are not for its tests.
fn dependencies(document: &DeTable<'_>, text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for kind in ["dependencies", "build-dependencies"] {
        for (key, value) in table(document, kind).into_iter().flatten() {
            let renamed = match value.get_ref() {
                DeValue::Table(value) => value
                    .get("package")
                    .and_then(|name| name.get_ref().as_str()),
                _ => None,
            };
            let name = renamed.unwrap_or(key.get_ref());
            found.insert(name.to_owned(), line(text, key.span().start));
        }
    }
    found
}

/// The line of a byte, from 1.
pub(super) fn line(text: &str, byte: usize) -> usize {
    1 + text
        .bytes()
        .take(byte)
        .filter(|&byte| byte == b'\n')
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_targets_and_dependencies() {
        let manifest = "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\n\
                        d = { path = \"../c\", package = \"c\" }\n[dev-dependencies]\ne = \"1\"\n\
                        [[test]]\nname = \"t\"\npath = \"tests/t/start.rs\"\n";
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\n"),
            ("crates/a/Cargo.toml", manifest),
            ("crates/a/src/lib.rs", ""),
            ("crates/a/src/b.rs", ""),
            ("crates/a/tests/one.rs", ""),
            ("crates/a/tests/many/main.rs", ""),
            ("crates/a/tests/many/part.rs", ""),
            ("crates/a/tests/t/start.rs", ""),
            ("src/lib.rs", ""),
        ]);
        let found = packages(&tree).expect("valid manifests");
        let [package] = &found[..] else {
            panic!("one package: {found:?}");
        };
        assert_eq!(package.name, "a");
        let roots = [
            "src/lib.rs",
            "tests/many/main.rs",
            "tests/one.rs",
            "tests/t/start.rs",
        ];
        assert_eq!(package.roots, roots.map(|root| format!("crates/a/{root}")));
        let dependencies: Vec<(&str, usize)> = package
            .dependencies
            .iter()
            .map(|(name, &line)| (name.as_str(), line))
            .collect();
        assert_eq!(dependencies, [("b", 4), ("c", 5)]);
    }
}
