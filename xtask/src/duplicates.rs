//! Some crates must be in the lock file once: two versions of them compile, and then differ in
//! types that should be the same (`vm-memory`), or in what they know of the kernel.

use std::collections::BTreeMap;

/// Crates of which one version is allowed.
pub(crate) const SINGLE: [&str; 3] = ["vm-memory", "rustix", "io-uring"];

/// The crates of [`SINGLE`] that `lock` (a `Cargo.lock`) has more than once, with their versions.
pub(crate) fn duplicates(lock: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut name = "";
    for line in lock.lines() {
        if let Some(value) = line.strip_prefix("name = ") {
            name = value.trim_matches('"');
        } else if let Some(value) = line.strip_prefix("version = ")
            && SINGLE.contains(&name)
        {
            versions
                .entry(name)
                .or_default()
                .push(value.trim_matches('"'));
        }
    }
    versions.retain(|_, versions| versions.len() > 1);
    versions
}

#[cfg(test)]
mod tests {
    use super::duplicates;

    #[test]
    fn two_versions_of_a_single_crate_are_found() {
        let package = |name: &str, version: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n")
        };
        let mut lock = String::from("version = 4\n\n");
        lock.push_str(&package("rustix", "0.38.1"));
        lock.push_str(&package("bitflags", "1.0.0"));
        lock.push_str(&package("bitflags", "2.0.0"));
        lock.push_str(&package("vm-memory", "0.18.0"));
        assert!(duplicates(&lock).is_empty());
        lock.push_str(&package("rustix", "1.1.0"));
        let found = duplicates(&lock);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("rustix", vec!["0.38.1", "1.1.0"])]
        );
    }
}
