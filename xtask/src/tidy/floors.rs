//! Floors: each crate uses crates of lower floors only, tests aside, and is on one floor.

use super::packages::Package;

/// Crates from the bottom up.
const FLOORS: &[&[&str]] = &[
    // basis
    &["commands", "telemetry"],
    // mechanisms, one each
    &[
        "engine",
        "lsi-driver",
        "sandbox",
        "tls",
        "unix-socket",
        "virtqueue",
    ],
    // network storage; signals to front-ends
    &["ceph", "eventfd", "nbd"],
    // nodes; protocols; options
    &["block", "options", "qmp", "vfio-user", "vhost-user"],
    // what SCSI controllers share; manual pages
    &["manual", "scsi"],
    // devices of virtqueues
    &["virtio-blk", "virtio-scsi"],
    // queues
    &["iothread"],
    // NBD; jobs
    &["copier", "nbd-server"],
    // a PCI device
    &["lsi53c895a"],
    &["daemon", "test-support"],
    // programs, guests
    &["bench", "blockplane", "fuzz-targets", "guest"],
    &["experiments"],
    // checks of all that
    &["fuzz", "interleavings", "interop", "sim", "xtask"],
];

const THIS_FILE: &str = "xtask/src/tidy/floors.rs";

pub(super) fn check(packages: &[Package]) -> Vec<String> {
    check_floors(packages, FLOORS)
}

fn check_floors(packages: &[Package], floors: &[&[&str]]) -> Vec<String> {
    let floor_of = |name: &str| floors.iter().position(|floor| floor.contains(&name));
    let mut errors = Vec::new();
    for &name in floors.iter().copied().flatten() {
        if !packages.iter().any(|package| package.name == name) {
            errors.push(format!(
                "{THIS_FILE}:1: there is no package '{name}'; remove it"
            ));
        }
    }
    for Package {
        name,
        manifest,
        dependencies,
        ..
    } in packages
    {
        let Some(floor) = floor_of(name) else {
            errors.push(format!("{manifest}:1: '{name}' is on no floor; add it to {THIS_FILE}, above all that it uses"));
            continue;
        };
        for used in dependencies {
            if let Some(above) = floor_of(used).filter(|used| *used >= floor) {
                errors.push(format!(
                    "{manifest}:1: '{name}' on floor {floor} uses '{used}' on floor {above}; move what both need to a crate \
                     below, or change the floors in {THIS_FILE}"
                ));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_uses_lower_floors_only_and_is_on_one() {
        let package = |name: &str, uses: &[&str]| Package {
            name: name.to_owned(),
            manifest: format!("{name}/Cargo.toml"),
            roots: Vec::new(),
            dependencies: uses.iter().map(|&used| used.to_owned()).collect(),
        };
        let packages = [
            package("a", &["libc"]),
            package("b", &["a", "c", "d"]),
            package("c", &["a"]),
            package("d", &["b", "c"]),
            package("e", &[]),
        ];
        let found = check_floors(&packages, &[&["a"], &["b", "c"], &["d", "f"]]);
        let begins = [
            "xtask/src/tidy/floors.rs:1: there is no package 'f'",
            "b/Cargo.toml:1: 'b' on floor 1 uses 'c' on floor 1",
            "b/Cargo.toml:1: 'b' on floor 1 uses 'd' on floor 2",
            "e/Cargo.toml:1: 'e' is on no floor",
        ];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        assert!(
            found
                .iter()
                .zip(begins)
                .all(|(found, begin)| found.starts_with(begin)),
            "{found:?}"
        );
    }
}
