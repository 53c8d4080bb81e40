//! Paths as they are compared: by what is written, since nothing is opened here.

use std::path::{Component, Path, PathBuf};

/// The same path without what says nothing: `./a//b/` is `a/b`. (`a/../b` may be another file than `b`.)
pub(crate) fn plain(path: &Path) -> PathBuf {
    let says_something = |component: &Component<'_>| *component != Component::CurDir;
    path.components().filter(says_something).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_nothing_is_left_out() {
        for (path, expected) in [
            ("./a//b/", "a/b"),
            ("a/./b", "a/b"),
            ("/a/../b", "/a/../b"),
            ("/./a", "/a"),
        ] {
            assert_eq!(plain(Path::new(path)), Path::new(expected), "{path}");
        }
    }
}
