//! Where in a file something is, for people and for editors.

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

impl Place {
    /// Finds a range of bytes. What goes on in the next line is cut off.
    pub(super) fn of(text: &str, range: &Range<usize>) -> Self {
        let start = text.floor_char_boundary(range.start);
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let rest = &text[line_start..];
        let line_text = rest.lines().next().unwrap_or_default();
        let line_end = line_start + line_text.len();
        let end = text.ceil_char_boundary(range.end.clamp(start, line_end.max(start)));
        Self {
            line: before.matches('\n').count() + 1,
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
        Place::of(text, &(start..start + word.len()))
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
        let found = Place::of(text, &(text.len()..text.len()));
        assert_eq!((found.line, found.column, found.width), (1, 4, 1));
        assert_eq!(Place::of("", &(0..0)).line, 1);
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
