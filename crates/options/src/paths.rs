//! Normalizes paths by their text, to find out whether two are the same, since this crate opens nothing.

use std::path::{Component, Path, PathBuf};

/// The path without redundant components: `./a//b/` is `a/b`. (`a/../b` may be another file than `b`.)
pub(crate) fn without_redundant_components(path: &Path) -> PathBuf {
    let is_significant = |component: &Component<'_>| *component != Component::CurDir;
    path.components().filter(is_significant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redundant_components_are_removed() {
        for (path, expected) in [
            ("./a//b/", "a/b"),
            ("a/./b", "a/b"),
            ("/a/../b", "/a/../b"),
            ("/./a", "/a"),
        ] {
            let shortened = without_redundant_components(Path::new(path));
            assert_eq!(shortened, Path::new(expected), "{path}");
        }
    }
}
