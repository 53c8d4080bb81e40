//! Circles between the modules of a library or program, at each level: children of one module that use each other.
//!
//! A use from anywhere inside a child to anywhere inside another child counts. A use of what a module re-exports by name is one of
//! the module that it comes from, and a use of the parent itself is none of its children. Unit tests do not count, nor does what
//! [`scan`](super::scan) cannot see: re-exports by glob, and `macro_rules` that are in scope without a path.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{Modules, Target};

/// The names from a crate's root to a module.
type ModulePath<'m> = Vec<&'m str>;

/// Finds circles: a shortest one for each group of modules.
pub(super) fn check(modules: &Modules) -> Vec<String> {
    let mut errors = Vec::new();
    let targets = modules.targets.iter();
    for target in targets.filter(|target| target.root.contains("/src/")) {
        for uses in UsesOfSiblings::of_crate(modules, target).values() {
            errors.extend(uses.circles());
        }
    }
    errors
}

/// The uses between the children of one module, with a place for each.
#[derive(Debug, Default)]
struct UsesOfSiblings<'m> {
    next: BTreeMap<&'m str, BTreeMap<&'m str, String>>,
}

impl<'m> UsesOfSiblings<'m> {
    /// By parent.
    fn of_crate(modules: &'m Modules, target: &'m Target) -> BTreeMap<ModulePath<'m>, Self> {
        let names = Names::new(modules, target);
        let mut uses: BTreeMap<ModulePath<'_>, Self> = BTreeMap::new();
        for module in target.modules.iter().filter(|module| !module.test) {
            let paths = modules.scans[&module.file].paths.iter();
            for used in paths.filter(|used| !used.test) {
                let from = inside(&module.path, &used.inside);
                let to = names.resolve(&from, &used.segments, 0);
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(child), Some(other)) = (from.get(common), to.get(common)) {
                    let of_parent = uses.entry(from[..common].to_vec()).or_default();
                    let of_child = of_parent.next.entry(child).or_default();
                    of_child
                        .entry(other)
                        .or_insert_with(|| format!("{}:{}", module.file, used.line));
                }
            }
        }
        uses
    }

    fn circles(&self) -> Vec<String> {
        let mut found: BTreeSet<&str> = BTreeSet::new();
        let mut errors = Vec::new();
        for &module in self.next.keys() {
            let Some(circle) = self.shortest_circle(module) else {
                continue;
            };
            if circle.iter().any(|module| found.contains(module)) {
                continue;
            }
            found.extend(&circle);
            let place = |step: &[&str]| &self.next[step[0]][step[1]];
            let steps = circle.windows(2);
            let names = steps.map(|step| format!(" → {} ({})", step[1], place(step)));
            errors.push(format!(
                "{}: {module}{} is a circle of modules; move what both need to a module that uses neither",
                place(&circle[..2]),
                names.collect::<String>()
            ));
        }
        errors
    }

    /// A shortest way from a module back to itself, both ends included.
    fn shortest_circle(&self, module: &'m str) -> Option<Vec<&'m str>> {
        let mut before = BTreeMap::new();
        let mut queue = VecDeque::from([module]);
        while let Some(at) = queue.pop_front() {
            for &next in self.next.get(at).into_iter().flat_map(BTreeMap::keys) {
                before.entry(next).or_insert_with(|| {
                    queue.push_back(next);
                    at
                });
            }
        }
        let mut way = vec![module];
        let mut at = *before.get(module)?;
        while at != module {
            way.push(at);
            at = before[at];
        }
        way.push(module);
        way.reverse();
        Some(way)
    }
}

/// The modules of a crate, and the names that they import.
struct Names<'m> {
    modules: BTreeSet<ModulePath<'m>>,
    imports: BTreeMap<(ModulePath<'m>, &'m str), &'m [String]>,
}

/// Longest chain of re-exports that is followed; `use a::a` leads to itself.
const MAX_IMPORTS: usize = 8;

impl<'m> Names<'m> {
    fn new(modules: &'m Modules, target: &'m Target) -> Self {
        let mut names = Names {
            modules: BTreeSet::new(),
            imports: BTreeMap::new(),
        };
        for module in &target.modules {
            let scan = &modules.scans[&module.file];
            names.modules.insert(inside(&module.path, &[]));
            let declared = scan.modules.iter();
            names
                .modules
                .extend(declared.map(|declared| inside(&module.path, &declared.path)));
            for import in &scan.imports {
                let name = (inside(&module.path, &import.inside), &import.name[..]);
                names.imports.insert(name, &import.segments);
            }
        }
        names
    }

    /// The module where the path of a use ends: the innermost that it names, or that has what it names.
    fn resolve(&self, from: &[&'m str], segments: &'m [String], imports: usize) -> ModulePath<'m> {
        let mut at = from.to_vec();
        for segment in segments {
            match segment.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => _ = at.pop(),
                name => {
                    at.push(name);
                    if self.modules.contains(&at) {
                        continue;
                    }
                    at.pop();
                    let import = self.imports.get(&(at.clone(), name));
                    return match import.filter(|_| imports < MAX_IMPORTS) {
                        Some(import) => self.resolve(&at, import, imports + 1),
                        None => at,
                    };
                }
            }
        }
        at
    }
}

/// The path of an inline module of a file, or of an item in it.
fn inside<'m>(module: &'m [String], inside: &'m [String]) -> ModulePath<'m> {
    module.iter().chain(inside).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files;

    fn circles(sources: &[(&str, &str)]) -> Vec<String> {
        let root = "crates/a/src/lib.rs".to_owned();
        check(&Modules::new(&files(sources), [&root]))
    }

    #[test]
    fn circles_are_found_at_every_level_and_through_re_exports() {
        let found = circles(&[
            (
                "crates/a/src/lib.rs",
                "mod b;\nmod c;\nmod d;\nmod e;\npub use d::Thing as Other;\n",
            ),
            ("crates/a/src/b.rs", "mod deep;\nmod low;\n"),
            (
                "crates/a/src/b/deep.rs",
                "\nuse super::super::c::X;\nuse super::low;\n",
            ),
            ("crates/a/src/b/low.rs", "fn f() { crate::b::deep::g() }\n"),
            ("crates/a/src/c.rs", "use crate::Other;\n"),
            (
                "crates/a/src/d.rs",
                "mod inner { fn f() { crate::b::g() } }\n",
            ),
            ("crates/a/src/e.rs", "use crate::b;\n"),
        ]);
        let begins = [
            "crates/a/src/b/deep.rs:2: b → c (crates/a/src/b/deep.rs:2) → d (crates/a/src/c.rs:1) → b (crates/a/src/d.rs:1) is",
            "crates/a/src/b/deep.rs:3: deep → low (crates/a/src/b/deep.rs:3) → deep (crates/a/src/b/low.rs:1) is",
        ];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        for (found, begin) in found.iter().zip(begins) {
            assert!(found.starts_with(begin), "{found}");
        }
    }

    #[test]
    fn unit_tests_parents_and_the_way_down_make_no_circle() {
        let found = circles(&[
            (
                "crates/a/src/lib.rs",
                "mod b;\nmod c;\nuse a::a;\nfn f() {}\n",
            ),
            (
                "crates/a/src/b.rs",
                "use crate::{a, c};\nuse crate::f;\nmod deep { use super::super::b; }\n",
            ),
            (
                "crates/a/src/c.rs",
                "mod b;\nmod d { use super::b; }\n#[cfg(test)]\nmod tests { use crate::b; }\n#[cfg(test)]\nmod more;\n",
            ),
            ("crates/a/src/c/b.rs", "use super::X;\n"),
            ("crates/a/src/c/more.rs", "use crate::b;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
