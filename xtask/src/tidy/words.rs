//! Words that the glossary replaces, in sources and documents, also as parts of identifiers (`is_active`, `DirtyLog`).
//!
//! A word alone between quotation marks or backticks is a name, as the user `nobody` is, and does not count. Case makes no
//! difference. A spell checker knows misspelt words only, and neither phrases nor folders.

use super::{Files, ending_with};

/// A word or phrase that is nearly always wrong.
struct Word {
    /// The word and its other forms.
    forms: &'static [&'static str],
    instead: &'static str,
    /// The folders where it is wrong; none for everywhere.
    under: &'static [&'static str],
}

const fn word(forms: &'static [&'static str], instead: &'static str) -> Word {
    let under = &[];
    Word {
        forms,
        instead,
        under,
    }
}

const WORDS: &[Word] = &[
    word(&["whoever"], "what it is: a caller, a front-end, a thread"),
    word(
        &["somebody"],
        "what it is: a client, a guest, another process",
    ),
    word(&["nobody"], "what is missing: no client, no thread"),
    word(&["told"], "notified, reported, sent"),
    word(&["mended", "mend", "mends", "mending"], "fixed"),
    word(
        &["judge", "judged", "judges", "judging", "judgement"],
        "validate, check, decide",
    ),
    word(&["looker", "lookers"], "sampler"),
    word(
        &[
            "give away",
            "gives away",
            "gave away",
            "given away",
            "giving away",
        ],
        "drop",
    ),
    word(
        &[
            "give back",
            "gives back",
            "gave back",
            "given back",
            "giving back",
        ],
        "dispatch (completions), return, release",
    ),
    word(
        &["carried out again", "carry out again", "carries out again"],
        "resubmitted",
    ),
    word(
        &[
            "found by trying",
            "found out by trying",
            "find out by trying",
        ],
        "chosen by probing",
    ),
    // Elsewhere it is what a live upgrade does.
    Word {
        forms: &["hand over", "hands over", "handed over", "handing over"],
        instead: "submit",
        under: &[
            "crates/engine/",
            "crates/iothread/src/event_loop/",
            "crates/virtio-blk/",
        ],
    },
];

/// It has all these words.
const THIS_FILE: &str = "xtask/src/tidy/words.rs";

pub(super) fn check(files: &Files) -> Vec<String> {
    let mut errors = Vec::new();
    for (path, text) in ending_with(files, ".rs").chain(ending_with(files, ".md")) {
        if path == THIS_FILE {
            continue;
        }
        let lower = text.to_ascii_lowercase().replace('_', " ");
        let is_in = |folder: &&str| path.starts_with(folder);
        for Word {
            forms,
            instead,
            under,
        } in WORDS
        {
            if !under.is_empty() && !under.iter().any(is_in) {
                continue;
            }
            for form in *forms {
                let found = lower.match_indices(form);
                for (at, _) in found.filter(|(at, _)| is_word(text.as_bytes(), *at, form.len())) {
                    let line = 1 + text[..at].matches('\n').count();
                    errors.push(format!("{path}:{line}: '{form}'; write {instead}"));
                }
            }
        }
    }
    errors
}

/// Whether a part of a text is a word or phrase, and not quoted alone.
fn is_word(text: &[u8], start: usize, len: usize) -> bool {
    let end = start + len;
    let before = start.checked_sub(1).map(|at| text[at]);
    let after = text.get(end).copied();
    let is_letter = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphabetic());
    let begins = !is_letter(before)
        || before.is_some_and(|c| c.is_ascii_lowercase()) && text[start].is_ascii_uppercase();
    let ends = !is_letter(after)
        || text[end - 1].is_ascii_lowercase() && after.is_some_and(|c| c.is_ascii_uppercase());
    let is_quoted = matches!(before, Some(b'"' | b'\'' | b'`')) && before == after;
    begins && ends && !is_quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files;

    #[test]
    fn words_are_found_in_prose_and_identifiers() {
        let text = "// We gave it, untold, to the user \"nobody\".\nlet was_told = 1;\nfn asTold() {}\nTOLD\n// he gives\n// Give away\n";
        let found = check(&files(&[
            ("a.rs", text),
            ("b.md", "Hand over.\nTold.\n"),
            ("crates/engine/c.rs", "hand over"),
        ]));
        let places: Vec<&str> = found
            .iter()
            .filter_map(|error| error.split(": ").next())
            .collect();
        assert_eq!(
            places,
            [
                "a.rs:2",
                "a.rs:3",
                "a.rs:4",
                "a.rs:6",
                "crates/engine/c.rs:1",
                "b.md:2"
            ]
        );
    }
}
