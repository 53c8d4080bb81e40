//! Rust files that nothing compiles: no module declaration, `#[path]` or target leads to them.

use super::Finding;
use super::modules::Modules;

pub(super) fn check(modules: &Modules) -> impl Iterator<Item = Finding> {
    modules.unreached().map(|file| Finding {
        rule: "dead-files",
        subject: file.to_owned(),
        number: 1,
        path: file.to_owned(),
        line: 1,
        text: "no target reaches this file; declare it as a module, or delete it".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::{manifest::packages, tree::Tree};

    #[test]
    fn a_file_that_no_module_declares_is_found() {
        let tree = Tree::of(&[
            ("a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("a/src/main.rs", "mod used;\n// mod dead;\n"),
            ("a/src/used.rs", ""),
            ("a/src/dead.rs", ""),
        ]);
        let packages = packages(&tree).expect("valid manifests");
        let modules = Modules::new(&tree, &packages);
        let found: Vec<String> = check(&modules).map(|finding| finding.path).collect();
        assert_eq!(found, ["a/src/dead.rs"]);
    }
}
