//! Line and column of an offset in a configuration file, for error messages, with the line itself.

use std::{fmt, ops::Range};

use crate::tree::HIDDEN_KEY;

/// A location in a configuration file, within one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The line, from 1.
    pub line: usize,
    /// The first character, from 1.
    pub column: usize,
    /// How many characters; at least 1.
    pub width: usize,
    /// The line, without what follows the key of a secret's content.
    pub text: String,
}

/// The lines of a text, to find locations.
pub(super) struct Lines<'t> {
    text: &'t str,
    /// The offset of each line.
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    /// The lines of a text.
    pub(super) fn of(text: &'t str) -> Self {
        let ends = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(ends).collect(),
        }
    }

    /// The location of a range of bytes, up to the end of its first line.
    pub(super) fn location_of_range(&self, range: &Range<usize>) -> Location {
        let text = self.text;
        let start = text.floor_char_boundary(range.start);
        let line = self.starts.partition_point(|begin| *begin <= start);
        let line_start = self.starts[line - 1];
        let rest = &text[line_start..];
        let line_text = rest.lines().next().unwrap_or_default();
        let line_end = line_start + line_text.len();
        let end = text.ceil_char_boundary(range.end.clamp(start, line_end.max(start)));
        let shown = without_hidden_value(line_text);
        let before = text[line_start..start].chars().count();
        // Within what is shown.
        let longest = shown.chars().count().saturating_sub(before);
        Location {
            line,
            column: before + 1,
            width: text[start..end].chars().count().min(longest).max(1),
            text: shown,
        }
    }
}

/// The line up to the content of a secret, if it has one.
fn without_hidden_value(line: &str) -> String {
    let ends_key = |rest: &str| {
        let rest = rest.trim_start_matches(['"', '\'']).trim_start();
        rest.starts_with('=')
    };
    let mut keys = line.match_indices(HIDDEN_KEY);
    match keys.find(|(at, key)| ends_key(&line[at + key.len()..])) {
        Some((at, key)) => format!("{} = …", &line[..at + key.len()]),
        None => line.to_owned(),
    }
}

/// Most characters of a line in a message.
const MAX_SHOWN_CHARS: usize = 100;

/// The line, and carets below the location.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The part of a long line around the location.
        let skip = match self.text.chars().nth(MAX_SHOWN_CHARS) {
            Some(_) => (self.column - 1).saturating_sub(MAX_SHOWN_CHARS / 2),
            None => 0,
        };
        let shown = self.text.chars().skip(skip).take(MAX_SHOWN_CHARS);
        // Tabs have no fixed width, and control characters must not reach a terminal.
        let shown: String = shown
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let number = self.line;
        let margin = " ".repeat(number.to_string().len());
        let indent = " ".repeat(self.column - 1 - skip);
        let carets = "^".repeat(self.width.min(MAX_SHOWN_CHARS));
        write!(
            f,
            "  {number} | {}\n  {margin} | {indent}{carets}",
            shown.trim_end()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str, word: &str) -> Location {
        let start = text.find(word).unwrap_or(text.len());
        Lines::of(text).location_of_range(&(start..start + word.len()))
    }

    #[test]
    fn lines_and_columns_are_counted_in_characters() {
        let found = location("a\nÄÖ = wrong # b\nc", "wrong");
        assert_eq!((found.line, found.column, found.width), (2, 6, 5));
        assert_eq!(found.to_string(), "  2 | ÄÖ = wrong # b\n    |      ^^^^^");
    }

    #[test]
    fn the_content_of_a_secret_is_not_shown() {
        for line in [
            "data = \"c2VjcmV0\"",
            "s = { id = 1, \"data\"=\"c2VjcmV0\" }",
            "a.data  =c2VjcmV0",
        ] {
            let found = location(line, "c2VjcmV0");
            let shown = found.to_string();
            assert!(!shown.contains("c2"), "{shown}");
            assert!(shown.contains("data"), "{shown}");
            assert!(found.width < 4, "its length is not shown either: {shown}");
        }
        let found = location("database = data.img", "data.img");
        assert_eq!(found.text, "database = data.img");
    }

    #[test]
    fn a_location_ends_at_the_end_of_its_first_line_or_of_the_text() {
        let found = location("a = [\n1\n]\n", "[\n1\n]");
        assert_eq!((found.line, found.column, found.width), (1, 5, 1));
        let found = Lines::of("a =").location_of_range(&(3..3));
        assert_eq!((found.line, found.column, found.width), (1, 4, 1));
        assert_eq!(Lines::of("").location_of_range(&(0..0)).line, 1);
    }

    #[test]
    fn long_lines_are_cut_around_the_location() {
        let text = format!("{}wrong{}", "x".repeat(500), "y".repeat(500));
        let shown = location(&text, "wrong").to_string();
        let (line, carets) = shown.split_once('\n').unwrap_or_default();
        assert_eq!(line.find("wrong"), carets.find("^^^^^"));
        assert!(line.len() < 120, "{line}");
    }
}
