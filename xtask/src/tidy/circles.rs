//! Circles between the modules of a crate: those right below its root, with all that is in them.
//!
//! A circle is a set of modules each of which reaches each other one by uses (a strongly connected component). A use
//! of what the root re-exports by name is a use of the module that it comes from. Unit tests do not count, nor does
//! the root itself, nor what [`scan`](super::scan) cannot see: re-exports by glob, and `macro_rules` that are in
//! scope without a path.
//!
//! Each module of a circle is an exception, and so is the size of a crate's largest circle: two circles that become
//! one are noticed by that size.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::Finding;
use super::modules::{Modules, Target};

/// Finds the modules that are in circles, and the size of each crate's largest circle.
pub(super) fn check(modules: &Modules) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |subject: &str, number, Place { file, line }: &Place, text| {
        findings.push(Finding {
            rule: "circles",
            subject: subject.to_owned(),
            number,
            path: file.clone(),
            line: *line,
            text,
        });
    };
    for (target, uses) in uses_of_targets(modules) {
        let circles = uses.circles();
        for &module in circles.iter().flatten() {
            let way = uses.way_back(module);
            let subject = format!("{}: {module}", target.root);
            let text = format!(
                "{} is a circle; move what both need to a module that uses neither",
                way.join(" → ")
            );
            find(&subject, 1, &uses.places(way[0], way[1])[0], text);
        }
        if let Some(largest) = circles.iter().max_by_key(|circle| circle.len()) {
            let names: Vec<&str> = largest.iter().copied().collect();
            let text = format!(
                "the largest circle has the modules {}; see 'cargo xtask tidy --circles'",
                names.join(", ")
            );
            let place = Place {
                file: target.root.clone(),
                line: 1,
            };
            find(&target.root, largest.len(), &place, text);
        }
    }
    findings
}

/// All circles as text, with the uses that make them.
pub(super) fn report(modules: &Modules) -> String {
    let mut text = String::new();
    for (target, uses) in uses_of_targets(modules) {
        for circle in uses.circles() {
            let names: Vec<&str> = circle.iter().copied().collect();
            let _ = writeln!(
                text,
                "{}: {} modules: {}",
                target.root,
                circle.len(),
                names.join(", ")
            );
            for (&(from, to), places) in &uses.places {
                if circle.contains(from) && circle.contains(to) {
                    let Place { file, line } = &places[0];
                    let _ = writeln!(
                        text,
                        "    {file}:{line}: {from} → {to} ({} in all)",
                        places.len()
                    );
                }
            }
        }
    }
    text
}

/// A place that uses another module.
#[derive(Debug)]
struct Place {
    file: String,
    line: usize,
}

/// The uses between the top-level modules of a target.
#[derive(Debug, Default)]
struct Uses<'m> {
    places: BTreeMap<(&'m str, &'m str), Vec<Place>>,
    next: BTreeMap<&'m str, BTreeSet<&'m str>>,
}

/// The targets that are crates of the product, with their uses.
fn uses_of_targets(modules: &Modules) -> impl Iterator<Item = (&Target, Uses<'_>)> {
    let targets = modules.targets.iter();
    let targets = targets.filter(|target| target.root.split('/').any(|part| part == "src"));
    targets.map(|target| (target, Uses::new(modules, target)))
}

impl<'m> Uses<'m> {
    fn new(modules: &'m Modules, target: &'m Target) -> Self {
        let root = &modules.scans[&target.root];
        let tops: BTreeSet<&str> = root
            .modules
            .iter()
            .filter(|top| top.path.len() == 1)
            .map(|top| &top.path[0][..])
            .collect();
        // A name that the root imports, and the module that it comes from.
        let imports = root.imports.iter().filter_map(|import| {
            let mut segments = import.segments.iter().map(|segment| &segment[..]);
            let module = segments.find(|segment| !["crate", "self"].contains(segment))?;
            tops.contains(module).then_some((&import.name[..], module))
        });
        let imports: BTreeMap<&str, &str> = imports.collect();
        let mut uses = Uses::default();
        for module in target.modules.iter().filter(|module| !module.test) {
            for used in modules.scans[&module.file]
                .paths
                .iter()
                .filter(|used| !used.test)
            {
                let inside = module.path.iter().chain(&used.inside).map(|name| &name[..]);
                let inside: Vec<&str> = inside.collect();
                let (Some(&from), Some(name)) =
                    (inside.first(), below_root(&inside, &used.segments))
                else {
                    continue;
                };
                let to = tops.get(name).or_else(|| imports.get(name));
                if let Some(&to) = to.filter(|&&to| to != from) {
                    let place = Place {
                        file: module.file.clone(),
                        line: used.line,
                    };
                    uses.places.entry((from, to)).or_default().push(place);
                    uses.next.entry(from).or_default().insert(to);
                }
            }
        }
        uses
    }

    fn places(&self, from: &'m str, to: &'m str) -> &[Place] {
        &self.places[&(from, to)]
    }

    fn next(&self, module: &'m str) -> impl Iterator<Item = &'m str> {
        self.next.get(module).into_iter().flatten().copied()
    }

    /// The modules that this one reaches, each with the one before it on a shortest way.
    fn reached(&self, from: &'m str) -> BTreeMap<&'m str, &'m str> {
        let mut reached = BTreeMap::new();
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(module) = queue.pop_front() {
            for next in self.next(module) {
                reached.entry(next).or_insert_with(|| {
                    queue.push_back(next);
                    module
                });
            }
        }
        reached
    }

    fn circles(&self) -> Vec<BTreeSet<&'m str>> {
        let reached: BTreeMap<&str, _> = self
            .next
            .keys()
            .map(|&from| (from, self.reached(from)))
            .collect();
        let reaches =
            |from: &str, to: &str| reached.get(from).is_some_and(|all| all.contains_key(to));
        let mut circles: Vec<BTreeSet<&str>> = Vec::new();
        for (&module, others) in &reached {
            let known = circles.iter().any(|circle| circle.contains(module));
            if reaches(module, module) && !known {
                circles.push(
                    others
                        .keys()
                        .copied()
                        .filter(|other| reaches(other, module))
                        .collect(),
                );
            }
        }
        circles
    }

    /// A shortest way from a module of a circle back to it, both ends included.
    fn way_back(&self, module: &'m str) -> Vec<&'m str> {
        let reached = self.reached(module);
        let mut way = vec![module];
        let mut at = reached[module];
        while at != module {
            way.push(at);
            at = reached[at];
        }
        way.push(module);
        way.reverse();
        way
    }
}

/// The first name below the root that a path leads to, if it leaves the top-level module by the root.
fn below_root<'p>(inside: &[&str], segments: &'p [String]) -> Option<&'p str> {
    let mut depth = inside.len();
    for segment in segments {
        match segment.as_str() {
            "crate" => depth = 0,
            "self" => {}
            "super" => depth = depth.checked_sub(1)?,
            name => return (depth == 0).then_some(name),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::{manifest::packages, tree::Tree};

    fn modules(files: &[(&str, &str)]) -> Modules {
        let manifest = ("a/Cargo.toml", "[package]\nname = \"a\"\n");
        let tree = Tree::of(&[&[manifest], files].concat());
        let packages = packages(&tree).expect("valid manifests");
        Modules::new(&tree, &packages)
    }

    fn subjects(modules: &Modules) -> Vec<(String, usize)> {
        let found = check(modules).into_iter();
        found
            .map(|finding| (finding.subject, finding.number))
            .collect()
    }

    #[test]
    fn a_circle_is_found_through_deeper_modules_and_re_exports() {
        let modules = modules(&[
            (
                "a/src/lib.rs",
                "mod b;\nmod c;\nmod d;\nmod e;\npub use d::Thing as Other;\n",
            ),
            ("a/src/b.rs", "mod deep;\n"),
            ("a/src/b/deep.rs", "\nuse super::super::c::X;\n"),
            ("a/src/c.rs", "use crate::Other;\n"),
            ("a/src/d.rs", "mod inner { fn f() { crate::b::g() } }\n"),
            ("a/src/e.rs", "use crate::b;\n"),
        ]);
        let expected = [
            ("a/src/lib.rs: b", 1),
            ("a/src/lib.rs: c", 1),
            ("a/src/lib.rs: d", 1),
            ("a/src/lib.rs", 3),
        ];
        assert_eq!(
            subjects(&modules),
            expected.map(|(subject, number)| (subject.to_owned(), number))
        );
        let first = &check(&modules)[0];
        assert_eq!((&first.path[..], first.line), ("a/src/b/deep.rs", 2));
        assert!(
            first.text.starts_with("b → c → d → b is a circle"),
            "{}",
            first.text
        );
        let report = report(&modules);
        assert!(
            report.starts_with("a/src/lib.rs: 3 modules: b, c, d\n"),
            "{report}"
        );
        assert!(
            report.contains("    a/src/c.rs:1: c → d (1 in all)\n"),
            "{report}"
        );
    }

    #[test]
    fn separate_circles_are_reported_separately() {
        let modules = modules(&[
            ("a/src/main.rs", "mod b;\nmod c;\nmod d;\nmod e;\n"),
            ("a/src/b.rs", "use crate::{c, d};\n"),
            ("a/src/c.rs", "use super::b;\n"),
            ("a/src/d.rs", "use crate::e::X;\n"),
            ("a/src/e.rs", "use crate::d::Y;\n"),
        ]);
        let largest = subjects(&modules).pop();
        assert_eq!(largest, Some(("a/src/main.rs".to_owned(), 2)));
        assert_eq!(subjects(&modules).len(), 5);
    }

    #[test]
    fn unit_tests_and_the_way_down_make_no_circle() {
        let modules = modules(&[
            ("a/src/lib.rs", "mod b;\nmod c;\nfn f() {}\n"),
            (
                "a/src/b.rs",
                "use crate::c;\nuse crate::f;\nmod deep { use super::super::b; }\n",
            ),
            (
                "a/src/c.rs",
                "mod b;\nmod d { use super::b; }\n#[cfg(test)]\nmod tests { use crate::b; }\n#[cfg(test)]\nmod more;\n",
            ),
            ("a/src/c/b.rs", ""),
            ("a/src/c/more.rs", "use crate::b;\n"),
        ]);
        assert_eq!(subjects(&modules), []);
    }
}
