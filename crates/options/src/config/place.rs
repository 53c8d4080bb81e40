//! Places in a file, for people and for editors.

use std::{fmt, ops::Range};

/// A place in a configuration file, within one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// The first character, from 1.
    pub column: usize,
    /// How many characters; at least 1.
    pub width: usize,
    /// The whole line.
    pub text: String,
}

/// A text, for finding places in it.
pub(super) struct Lines<'t> {
    text: &'t str,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        let ends = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(ends).collect(),
        }
    }

    /// Finds a range of bytes. What goes on in the next line is cut off.
    pub(super) fn place(&self, range: &Range<usize>) -> Place {
        let text = self.text;
        let start = text.floor_char_boundary(range.start);
        let line = self.starts.partition_point(|begin| *begin <= start);
        let line_start = self.starts[line - 1];
        let rest = &text[line_start..];
        let line_text = rest.lines().next().unwrap_or_default();
        let line_end = line_start + line_text.len();
        let end = text.ceil_char_boundary(range.end.clamp(start, line_end.max(start)));
        Place {
            line,
            column: text[line_start..start].chars().count() + 1,
            width: text[start..end].chars().count().max(1),
            text: line_text.to_owned(),
        }
    }
}

/// Most characters of a line that are shown.
const LONGEST: usize = 100;

/// The line, and carets below what is meant.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of a long line the part around the place.
        let skip = match self.text.chars().nth(LONGEST) {
            Some(_) => (self.column - 1).saturating_sub(LONGEST / 2),
            None => 0,
        };
        let shown = self.text.chars().skip(skip).take(LONGEST);
        // A tab has no width of its own, and other control characters are not for a terminal.
        let shown: String = shown
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let number = self.line;
        let margin = " ".repeat(number.to_string().len());
        let indent = " ".repeat(self.column - 1 - skip);
        let carets = "^".repeat(self.width.min(LONGEST));
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

    fn place(text: &str, word: &str) -> Place {
        let start = text.find(word).unwrap_or(text.len());
        Lines::of(text).place(&(start..start + word.len()))
    }

    #[test]
    fn lines_and_columns_are_counted_in_characters() {
        let found = place("a\nÄÖ = wrong # b\nc", "wrong");
        assert_eq!((found.line, found.column, found.width), (2, 6, 5));
        assert_eq!(found.to_string(), "  2 | ÄÖ = wrong # b\n    |      ^^^^^");
    }

    #[test]
    fn what_spans_lines_is_shown_to_the_end_of_the_first() {
        let found = place("a = [\n1\n]\n", "[\n1\n]");
        assert_eq!((found.line, found.column, found.width), (1, 5, 1));
    }

    #[test]
    fn the_end_of_the_text_is_a_place() {
        let text = "a =";
        let found = Lines::of(text).place(&(text.len()..text.len()));
        assert_eq!((found.line, found.column, found.width), (1, 4, 1));
        assert_eq!(Lines::of("").place(&(0..0)).line, 1);
    }

    #[test]
    fn of_a_long_line_the_part_around_the_place_is_shown() {
        let text = format!("{}wrong{}", "x".repeat(500), "y".repeat(500));
        let shown = place(&text, "wrong").to_string();
        let (line, carets) = shown.split_once('\n').unwrap_or_default();
        assert_eq!(line.find("wrong"), carets.find("^^^^^"));
        assert!(line.len() < 120, "{line}");
    }
}
