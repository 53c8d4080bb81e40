//! Module headers: each Rust file begins with `//!` and a noun phrase or a sentence.
//!
//! A header such as "Which thread runs a queue" is half of a question. The rule goes by the first word, so that it
//! also refuses a sentence that begins with "When": turn that around.

use super::Finding;
use super::tree::Tree;

/// First words of clauses that lack their main clause.
const HEADLESS: [&str; 11] = [
    "How", "What", "Whatever", "When", "Where", "Whether", "Which", "Who", "Whoever", "Whose",
    "Why",
];

pub(super) fn check(tree: &Tree) -> impl Iterator<Item = Finding> {
    tree.ending_with(".rs").filter_map(|(path, text)| {
        Some(Finding {
            rule: "headers",
            subject: path.to_owned(),
            number: 1,
            path: path.to_owned(),
            line: 1,
            text: mistake(text)?,
        })
    })
}

/// The mistake in the header of a file.
fn mistake(text: &str) -> Option<String> {
    let first = text.lines().next().unwrap_or_default();
    let Some(header) = first.strip_prefix("//! ") else {
        return Some(
            "the file does not begin with '//! '; say what it is and why it is there".to_owned(),
        );
    };
    let word = header.split(|c: char| !c.is_alphabetic()).next()?;
    let headless = HEADLESS.contains(&word);
    headless.then(|| {
        format!("the header begins with '{word}'; begin with a noun phrase or a sentence's subject")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_headless_headers_are_found() {
        let files = [
            ("fine.rs", "//! Whatsoever: a noun phrase.\n"),
            ("late.rs", "use a::b;\n//! A header.\n"),
            ("none.rs", ""),
            ("what.rs", "//! What's wrong.\n"),
            ("which.rs", "//! Which thread runs a queue.\n"),
        ];
        let found: Vec<String> = check(&Tree::of(&files))
            .map(|finding| finding.path)
            .collect();
        assert_eq!(found, ["late.rs", "none.rs", "what.rs", "which.rs"]);
    }
}
