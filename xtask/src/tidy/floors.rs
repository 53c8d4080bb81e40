//! Floors: each crate uses crates of lower floors only, tests aside, and is on one floor.

use std::collections::BTreeMap;

use super::manifest::Package;
use super::settings::Place;
use super::{FILE, Finding};

pub(super) fn check(packages: &[Package], floors: &[Vec<Place>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |path: &str, line, name: &str, text| {
        findings.push(Finding {
            rule: "floors",
            subject: format!("{path}: {name}"),
            number: 1,
            path: path.to_owned(),
            line,
            text,
        });
    };
    let mut floor_of = BTreeMap::new();
    for (places, floor) in floors.iter().zip(0usize..) {
        for Place { package, line } in places {
            if !packages.iter().any(|known| known.name == *package) {
                find(
                    FILE,
                    *line,
                    package,
                    format!("there is no package '{package}'; remove it"),
                );
            } else if floor_of.insert(&package[..], floor).is_some() {
                find(
                    FILE,
                    *line,
                    package,
                    format!("'{package}' is on two floors; remove one"),
                );
            }
        }
    }
    for Package {
        name,
        manifest,
        dependencies,
        ..
    } in packages
    {
        let Some(&floor) = floor_of.get(&name[..]) else {
            let text = format!("'{name}' is on no floor; add it to {FILE}, above all that it uses");
            find(manifest, 1, name, text);
            continue;
        };
        for (used, &line) in dependencies {
            let Some(&below) = floor_of.get(&used[..]).filter(|&&below| below >= floor) else {
                continue;
            };
            let text = format!(
                "'{name}' on floor {floor} uses '{used}' on floor {below}; move what both need to a crate below, \
                 or change the floors in {FILE}"
            );
            find(manifest, line, used, text);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: format!("{name}/Cargo.toml"),
            roots: Vec::new(),
            dependencies: uses.iter().map(|&used| (used.to_owned(), 9)).collect(),
        }
    }

    fn subjects(packages: &[Package], floors: &[&[&str]]) -> Vec<String> {
        let place = |&package: &&str| Place {
            package: package.to_owned(),
            line: 1,
        };
        let floors = floors.iter().map(|floor| floor.iter().map(place).collect());
        let found = check(packages, &floors.collect::<Vec<_>>());
        found.into_iter().map(|finding| finding.subject).collect()
    }

    #[test]
    fn dependency_on_a_higher_floor_is_found() {
        let packages = [
            package("a", &["libc"]),
            package("b", &["a", "c", "d"]),
            package("c", &["a"]),
            package("d", &["b", "c"]),
        ];
        let found = subjects(&packages, &[&["a"], &["b", "c"], &["d"]]);
        assert_eq!(found, ["b/Cargo.toml: c", "b/Cargo.toml: d"]);
    }

    #[test]
    fn each_package_is_on_one_floor() {
        let packages = [package("a", &[]), package("b", &[])];
        assert_eq!(subjects(&packages, &[&["a"], &["b"]]), [""; 0]);
        assert_eq!(subjects(&packages, &[&["a"]]), ["b/Cargo.toml: b"]);
        assert_eq!(
            subjects(&packages, &[&["a", "b"], &["a"]]),
            ["xtask/tidy.toml: a"]
        );
        assert_eq!(
            subjects(&packages, &[&["a", "b", "c"]]),
            ["xtask/tidy.toml: c"]
        );
    }
}
