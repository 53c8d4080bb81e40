//! Words that the glossary replaces, counted in each source and document.
//!
//! Identifiers are split into their words (`is_active`, `DirtyLog`), and case makes no difference. A word alone between quotation
//! marks or backticks is a name, as the user `nobody` is, and does not count. A phrase is found within a line.

use std::collections::BTreeMap;

use super::settings::Word;
use super::tree::Tree;
use super::{Finding, listed};

pub(super) fn check(tree: &Tree, words: &[Word]) -> Vec<Finding> {
    let phrases = Phrases::new(words);
    let mut findings = Vec::new();
    for (path, text) in tree.ending_with(".rs").chain(tree.ending_with(".md")) {
        let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (line, number) in text.lines().zip(1..) {
            for word in phrases.of_line(line) {
                found.entry(word).or_default().push(number);
            }
        }
        for (word, lines) in found {
            let Word {
                forms,
                instead,
                under,
            } = &words[word];
            if !under.is_empty() && !under.iter().any(|folder| path.starts_with(folder)) {
                continue;
            }
            let form = &forms[0];
            findings.push(Finding {
                rule: "words",
                subject: format!("{path}: {form}"),
                number: lines.len(),
                path: path.to_owned(),
                line: lines[0],
                text: format!("'{form}' on {}; write {instead}", listed(&lines)),
            });
        }
    }
    findings
}

/// All forms of all words, by the first word of each.
struct Phrases<'w> {
    /// The further words of a form, and the number of the entry.
    by_first: BTreeMap<&'w str, Vec<(Vec<&'w str>, usize)>>,
}

impl<'w> Phrases<'w> {
    fn new(words: &'w [Word]) -> Self {
        let mut by_first: BTreeMap<&str, Vec<(Vec<&str>, usize)>> = BTreeMap::new();
        for (word, number) in words.iter().zip(0..) {
            for form in &word.forms {
                let mut parts = form.split(' ');
                let first = parts.next().unwrap_or_default();
                by_first
                    .entry(first)
                    .or_default()
                    .push((parts.collect(), number));
            }
        }
        Phrases { by_first }
    }

    /// The entries that a line has, one for each time.
    fn of_line(&self, line: &str) -> Vec<usize> {
        let words = split(line);
        let mut found = Vec::new();
        for (at, first) in words.iter().enumerate() {
            for (rest, number) in self.by_first.get(&first[..]).into_iter().flatten() {
                if words[at + 1..]
                    .iter()
                    .map(|word| &word[..])
                    .take(rest.len())
                    .eq(rest.iter().copied())
                {
                    found.push(*number);
                }
            }
        }
        found
    }
}

/// The words of a line in lower case, without those that are quoted alone.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        while at < bytes.len() && bytes[at].is_ascii_alphabetic() {
            // `aB` and the `Bc` of `ABc` begin words.
            let next_is_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
            let begins = at > start && bytes[at].is_ascii_uppercase();
            if begins && (bytes[at - 1].is_ascii_lowercase() || next_is_lower) {
                break;
            }
            at += 1;
        }
        if at == start {
            at += 1;
            continue;
        }
        let (before, after) = (
            start.checked_sub(1).map(|at| bytes[at]),
            bytes.get(at).copied(),
        );
        let quoted = matches!(before, Some(b'"' | b'\'' | b'`')) && before == after;
        if !quoted {
            words.push(line[start..at].to_ascii_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(forms: &[&str], under: &[&str]) -> Word {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Word {
            forms: owned(forms),
            instead: "something else".to_owned(),
            under: owned(under),
        }
    }

    #[test]
    fn words_are_found_in_prose_and_identifiers() {
        let words = [word(&["frob", "frobs"], &[]), word(&["lay bricks"], &[])];
        let text = "// It is frob, and Frobs.\nlet is_frob = LayBricks::frobs_b();\n// \"frob\" unfrob `frobs` lay it bricks\n";
        let found = check(&Tree::of(&[("a.rs", text), ("b.md", "Frob.\n")]), &words);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|one| (&one.subject[..], &one.text[..]))
            .collect();
        let expected = [
            (
                "a.rs: frob",
                "'frob' on lines 1, 1, 2, 2; write something else",
            ),
            (
                "a.rs: lay bricks",
                "'lay bricks' on line 2; write something else",
            ),
            ("b.md: frob", "'frob' on line 1; write something else"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_word_may_be_wrong_in_some_folders_only() {
        let tree = Tree::of(&[("a/b.rs", "// lay bricks\n"), ("c/d.rs", "// lay bricks\n")]);
        let found = check(&tree, &[word(&["lay bricks"], &["a/"])]);
        let found: Vec<&str> = found.iter().map(|one| &one.subject[..]).collect();
        assert_eq!(found, ["a/b.rs: lay bricks"]);
    }
}
