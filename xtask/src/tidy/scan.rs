//! Module declarations and paths of one source file.
//!
//! A scanner and no parser. It does not see modules and paths that macros make up, and a path is only found when it
//! begins with `crate`, `self` or `super`: names that came by a glob import lead nowhere.

use super::tokens::{Kind, Token, tokens};

/// The declarations and paths of a file.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// `mod NAME;`, and inline modules.
    pub(super) modules: Vec<Declaration>,
    /// Paths in `use` and elsewhere.
    pub(super) paths: Vec<UsedPath>,
    /// Imports outside of functions: names by which others may reach something else.
    pub(super) imports: Vec<Import>,
}

/// A module that a file declares.
#[derive(Debug)]
pub(super) struct Declaration {
    /// The inline modules of the file around it, from the outermost, and its own name.
    pub(super) path: Vec<String>,
    /// Its text is in the same file.
    pub(super) inline: bool,
    /// The value of `#[path]`.
    pub(super) file: Option<String>,
    /// It is compiled for tests only.
    pub(super) test: bool,
}

/// A path that begins with `crate`, `self` or `super`.
#[derive(Debug)]
pub(super) struct UsedPath {
    /// The inline modules of the file around it.
    pub(super) inside: Vec<String>,
    pub(super) segments: Vec<String>,
    /// It is compiled for tests only.
    pub(super) test: bool,
    pub(super) line: usize,
}

/// An imported name, and what it stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// The inline modules of the file around it.
    pub(super) inside: Vec<String>,
    pub(super) name: String,
    pub(super) segments: Vec<String>,
}

/// Braces that are open: an inline module's, or any others.
#[derive(Debug)]
struct Scope {
    module: Option<String>,
    test: bool,
}

/// The attributes before the item that comes next.
#[derive(Debug, Default)]
struct Attributes {
    test: bool,
    file: Option<String>,
}

/// Scans the text of a file.
pub(super) fn scan(source: &str) -> Scan {
    let tokens = tokens(source);
    let mut scan = Scan::default();
    let mut scopes: Vec<Scope> = Vec::new();
    let mut attributes = Attributes::default();
    let mut module = None;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let test = attributes.test || scopes.iter().any(|scope| scope.test);
        let inside = scopes.iter().filter_map(|scope| scope.module.clone());
        match token.text {
            _ if token.kind == Kind::Literal => {}
            "#" => {
                at = attribute(&tokens, at + 1, &mut attributes);
                continue;
            }
            "mod" if let Some(name) = word(&tokens, at + 1) => {
                let inline = tokens.get(at + 2).is_some_and(|next| next.is("{"));
                scan.modules.push(Declaration {
                    path: inside.chain([name.to_owned()]).collect(),
                    inline,
                    file: attributes.file.take(),
                    test,
                });
                module = inline.then(|| name.to_owned());
            }
            "use" if scopes.iter().all(|scope| scope.module.is_some()) => {
                let mut leaves = Vec::new();
                use_tree(&tokens, at + 1, &[], &mut leaves);
                let inside: Vec<String> = inside.collect();
                scan.imports.extend(leaves.into_iter().map(|leaf| Import {
                    inside: inside.clone(),
                    name: leaf.name,
                    segments: leaf.segments,
                }));
            }
            "crate" | "self" | "super" if !follows_colons(&tokens, at) => {
                let mut leaves = Vec::new();
                at = use_tree(&tokens, at, &[], &mut leaves);
                let inside: Vec<String> = inside.collect();
                // A lone `self` is a variable, a lone `super` a glob import.
                leaves.retain(|leaf| leaf.segments.len() > 1);
                scan.paths.extend(leaves.into_iter().map(|leaf| UsedPath {
                    inside: inside.clone(),
                    segments: leaf.segments,
                    test,
                    line: leaf.line,
                }));
                continue;
            }
            "{" => {
                scopes.push(Scope {
                    module: module.take(),
                    test: attributes.test,
                });
                attributes = Attributes::default();
            }
            "}" => {
                scopes.pop();
                attributes = Attributes::default();
            }
            ";" => attributes = Attributes::default(),
            _ => {}
        }
        at += 1;
    }
    scan
}

fn word<'s>(tokens: &[Token<'s>], at: usize) -> Option<&'s str> {
    let token = tokens.get(at)?;
    (token.kind == Kind::Word).then_some(token.text)
}

fn follows_colons(tokens: &[Token<'_>], at: usize) -> bool {
    at > 0 && tokens[at - 1].is(":")
}

fn is_double_colon(tokens: &[Token<'_>], at: usize) -> bool {
    tokens
        .get(at..at + 2)
        .is_some_and(|two| two[0].is(":") && two[1].is(":"))
}

/// Reads `[…]` or `![…]` behind a hash; returns the place behind it.
fn attribute(tokens: &[Token<'_>], at: usize, attributes: &mut Attributes) -> usize {
    if !tokens.get(at).is_some_and(|token| token.is("[")) {
        return at;
    }
    let mut depth = 0usize;
    let mut end = at;
    while let Some(token) = tokens.get(end) {
        depth += usize::from(token.is("["));
        depth -= usize::from(token.is("]"));
        end += 1;
        if depth == 0 {
            break;
        }
    }
    let words: Vec<&str> = tokens[at + 1..end].iter().map(|token| token.text).collect();
    match words[..] {
        ["cfg", "(", "test", ")", ..] | ["cfg", "(", "all", "(", "test", ..] => {
            attributes.test = true;
        }
        ["path", "=", file, ..] => attributes.file = Some(file.trim_matches('"').to_owned()),
        _ => {}
    }
    end
}

/// A path at the end of a tree such as `a::{b, c as d}`.
#[derive(Debug)]
struct Leaf {
    name: String,
    segments: Vec<String>,
    line: usize,
}

/// Reads a path or a tree of paths; returns the place behind it.
fn use_tree(
    tokens: &[Token<'_>],
    mut at: usize,
    prefix: &[String],
    leaves: &mut Vec<Leaf>,
) -> usize {
    let line = tokens.get(at).map_or(0, |token| token.line);
    let mut segments = prefix.to_vec();
    loop {
        if tokens.get(at).is_some_and(|token| token.is("{")) {
            at += 1;
            while tokens.get(at).is_some_and(|token| !token.is("}")) {
                let next = use_tree(tokens, at, &segments, leaves);
                at = next.max(at + 1);
                if tokens.get(at).is_some_and(|token| token.is(",")) {
                    at += 1;
                }
            }
            return at + 1;
        }
        let Some(segment) = word(tokens, at) else {
            break;
        };
        segments.push(segment.to_owned());
        at += 1;
        if !is_double_colon(tokens, at) {
            break;
        }
        at += 2;
    }
    // `a::{self}` is `a`.
    if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
        segments.pop();
    }
    let mut name = segments.last().cloned().unwrap_or_default();
    if word(tokens, at) == Some("as") {
        name = word(tokens, at + 1).unwrap_or_default().to_owned();
        at += 2;
    }
    leaves.push(Leaf {
        name,
        segments,
        line,
    });
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_know_their_inline_modules_and_whether_they_are_tests() {
        let source = "use crate::{a::{self, B}, c as d};\n\
                      fn f(x: &crate::e::F<'_>) { super::g::h(x); self.x; crate::i!(); }\n\
                      // crate::no\n\
                      pub(crate) use self::j::*; const S: &str = \"crate::no\";\n\
                      mod k {\n use super::l;\n}\n\
                      #[cfg(test)]\nuse crate::m;\n\
                      #[cfg(test)]\nmod tests {\n mod deep { use crate::n; }\n}\nuse crate::o;";
        let paths = scan(source).paths.into_iter();
        let found: Vec<String> = paths
            .map(|path| {
                let names = [&path.inside[..], &path.segments].concat().join("::");
                format!("{}{} {names}", path.line, if path.test { "t" } else { "" })
            })
            .collect();
        let expected = [
            "1 crate::a",
            "1 crate::a::B",
            "1 crate::c",
            "2 crate::e::F",
            "2 super::g::h",
            "2 crate::i",
            "4 self::j",
            "6 k::super::l",
            "9t crate::m",
            "12t tests::deep::crate::n",
            "14 crate::o",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn modules_and_imports_are_found() {
        let source = "#[cfg(test)]\n#[path = \"x/y.rs\"]\npub(crate) mod a;\nmod b { mod c; pub use d::E as F; }\nfn g() { use h::I; }";
        let scan = scan(source);
        let modules = scan.modules.iter();
        let modules: Vec<_> = modules
            .map(|one| {
                (
                    one.path.join(" "),
                    one.inline,
                    one.file.as_deref(),
                    one.test,
                )
            })
            .collect();
        let expected = [
            ("a".to_owned(), false, Some("x/y.rs"), true),
            ("b".to_owned(), true, None, false),
            ("b c".to_owned(), false, None, false),
        ];
        assert_eq!(modules, expected);
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let import = Import {
            inside: names(&["b"]),
            name: "F".to_owned(),
            segments: names(&["d", "E"]),
        };
        assert_eq!(scan.imports, [import]);
    }
}
