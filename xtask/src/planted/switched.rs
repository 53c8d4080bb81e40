//! Several mistakes in one source: each function that some of them change has all of its bodies, and a variable of the environment
//! decides which one runs.
//!
//! So all mistakes are compiled at once. They may only change bodies of functions, and none of functions whose result is a type
//! that depends on the body.

use std::ops::Range;

use crate::tidy::tokens::{Kind, Token, tokens};

/// The environment variable that names the mistake of a process.
pub(super) const VARIABLE: &str = "BLOCKPLANE_PLANTED";

/// The source with all mistakes: each has a name, and the source as it is with this mistake alone.
pub(super) fn with_mistakes(source: &str, mistakes: &[(&str, &str)]) -> Result<String, String> {
    let original = Functions::of(source);
    let mut bodies: Vec<String> = original.bodies().map(str::to_owned).collect();
    for (name, mistaken) in mistakes {
        let changed = Functions::of(mistaken);
        if !original.differ_in_bodies_only(&changed) {
            return Err(format!("{name} changes more than bodies of functions"));
        }
        let pairs = original.bodies().zip(changed.bodies());
        for (body, (correct, wrong)) in bodies.iter_mut().zip(pairs) {
            if correct != wrong {
                *body = format!("{{ if {} {wrong} else {body} }}", condition(name));
            }
        }
    }
    let mut combined = source.to_owned();
    for (function, body) in original.list.iter().zip(&bodies).rev() {
        combined.replace_range(function.body.clone(), body);
    }
    Ok(combined)
}

/// An expression that is true in a process with this mistake. It refers to nothing outside, since a file may be compiled in
/// several crates.
fn condition(name: &str) -> String {
    format!(
        "{{ static IS_PLANTED: ::std::sync::OnceLock<bool> = ::std::sync::OnceLock::new(); \
         *IS_PLANTED.get_or_init(|| ::std::env::var_os({VARIABLE:?}).is_some_and(|name| name == {name:?})) }}"
    )
}

struct Function {
    /// With its braces.
    body: Range<usize>,
    /// It can have several bodies: it is not `const`, and does not return `impl Trait`.
    is_switchable: bool,
}

struct Functions<'s> {
    source: &'s str,
    /// Functions in functions are parts of their bodies.
    list: Vec<Function>,
    /// The tokens that are in no body.
    outside: Vec<&'s str>,
}

impl<'s> Functions<'s> {
    fn of(source: &'s str) -> Self {
        let tokens = tokens(source);
        let (mut list, mut outside) = (Vec::new(), Vec::new());
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            outside.push(token.text);
            at += 1;
            let Some(open) = token.is("fn").then(|| body_start(&tokens, at)).flatten() else {
                continue;
            };
            let close = body_end(&tokens, open);
            let signature = &tokens[at..open];
            outside.extend(signature.iter().map(|token| token.text));
            let before = &tokens[..at - 1];
            list.push(Function {
                body: tokens[open].start..tokens[close].start + 1,
                is_switchable: !is_const(before) && !returns_impl(signature),
            });
            at = close + 1;
        }
        Functions {
            source,
            list,
            outside,
        }
    }

    fn bodies(&self) -> impl Iterator<Item = &'s str> {
        self.list
            .iter()
            .map(|function| &self.source[function.body.clone()])
    }

    fn differ_in_bodies_only(&self, other: &Self) -> bool {
        let mut bodies = self.list.iter().zip(self.bodies().zip(other.bodies()));
        self.outside == other.outside
            && bodies.all(|(function, (one, two))| function.is_switchable || one == two)
    }
}

/// The brace that opens the body, if the `fn` before `signature` is a function and has one.
fn body_start(tokens: &[Token], signature: usize) -> Option<usize> {
    tokens
        .get(signature)
        .filter(|name| name.kind == Kind::Word)?;
    let mut depth = 0usize;
    let ends = |token: &Token| {
        depth += usize::from(token.is("(") || token.is("["));
        depth -= usize::from(token.is(")") || token.is("]"));
        depth == 0 && (token.is("{") || token.is(";"))
    };
    let end = signature + tokens[signature..].iter().position(ends)?;
    tokens[end].is("{").then_some(end)
}

/// The brace that closes what `open` opens.
fn body_end(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    let closes = |token: &Token| {
        depth += usize::from(token.is("{"));
        depth -= usize::from(token.is("}"));
        depth == 0
    };
    let len = tokens[open..].iter().position(closes);
    len.map_or(tokens.len() - 1, |len| open + len)
}

fn is_const(before_fn: &[Token]) -> bool {
    let qualifiers = before_fn.iter().rev().take(3);
    let mut qualifiers = qualifiers.take_while(|token| !token.is(";") && !token.is("}"));
    qualifiers.any(|token| token.is("const"))
}

fn returns_impl(signature: &[Token]) -> bool {
    signature
        .windows(3)
        .any(|three| three[0].is("-") && three[1].is(">") && three[2].is("impl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
/// Says `fn`.
const A: &str = \"fn a() {\";
fn one<F: Fn() -> bool>(f: F) -> bool { // {
    f() || { false }
}
impl B {
    fn two(&self, a: [u8; 2]);
    fn five(f: fn() -> bool, a: [u8; 2]) { one(f); }
    const fn three() -> u32 { 3 }
    fn four() -> impl Iterator<Item = u32> { [1].into_iter() }
}
";

    #[test]
    fn each_mistake_is_another_body_of_its_function() {
        let (a, b) = (SOURCE.replace("||", "&&"), SOURCE.replace("false", "true"));
        let both = with_mistakes(SOURCE, &[("a", &a), ("b", &b)]).expect("combined");
        assert!(both.starts_with("/// Says `fn`.\nconst A: &str = \"fn a() {\";\nfn one<"));
        assert!(both.ends_with(&SOURCE[SOURCE.find("impl B").expect("it is there")..]));
        for body in [
            "f() && { false }",
            "f() || { true }",
            "f() || { false }",
            "one(f);",
        ] {
            assert_eq!(both.matches(body).count(), 1, "{both}");
        }
        let switch = |name| both.find(&format!("name == {name:?}")).expect("a switch");
        assert!(switch("b") < switch("a"), "{both}");
    }

    #[test]
    fn a_mistake_outside_of_bodies_is_refused() {
        for (from, to) in [
            ("const A", "static A"),
            ("{ 3 }", "{ 4 }"),
            ("[1]", "[2]"),
            ("two", "six"),
        ] {
            let mistaken = SOURCE.replace(from, to);
            assert!(with_mistakes(SOURCE, &[("a", &mistaken)]).is_err(), "{to}");
        }
    }
}
