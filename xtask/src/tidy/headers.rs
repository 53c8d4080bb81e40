//! Module headers: each Rust file begins with `//!` and a noun phrase or a sentence.
//!
//! A header such as "Which thread runs a queue" is half of a question. The rule goes by the first word, so that it
//! also refuses a sentence that begins with "When": turn that around.

use super::{Files, ending_with};

/// First words of clauses that lack their main clause.
const HEADLESS: [&str; 11] = [
    "How", "What", "Whatever", "When", "Where", "Whether", "Which", "Who", "Whoever", "Whose",
    "Why",
];

pub(super) fn check(files: &Files) -> impl Iterator<Item = String> {
    ending_with(files, ".rs")
        .filter_map(|(path, text)| Some(format!("{path}:1: {}", mistake(text)?)))
}

/// The mistake in the header of a file.
fn mistake(text: &str) -> Option<String> {
    let Some(header) = text.strip_prefix("//! ") else {
        return Some(
            "the file does not begin with '//! '; say what it is and why it is there".to_owned(),
        );
    };
    let word = header.split(|c: char| !c.is_alphabetic()).next()?;
    HEADLESS.contains(&word).then(|| {
        format!("the header begins with '{word}'; begin with a noun phrase or a sentence's subject")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_headless_headers_are_found() {
        assert_eq!(mistake("//! Whatsoever: a noun phrase.\n"), None);
        for wrong in [
            "use a::b;\n//! A header.\n",
            "",
            "//! What's wrong.\n",
            "//! Which thread runs a queue.\n",
        ] {
            assert!(mistake(wrong).is_some(), "{wrong}");
        }
    }
}
