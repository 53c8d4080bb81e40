//! One line for each event, whatever its text has: clients choose some of it, such as names of exports, and must neither forge lines nor
//! change a terminal.

use std::io::{self, IsTerminal, Write};

use options::LogFormat;

/// What the numbers of a colour follow, `ESC [ numbers m` (ECMA-48, SGR).
const COLOUR_PREFIX: &str = "\x1b[";

/// Standard error, to which each event is written in one piece.
#[derive(Clone, Copy)]
pub(super) enum Lines {
    /// Text without colours.
    Plain,
    /// Text with colours, for a terminal.
    Coloured,
    /// JSON, which has control characters only where strings have them.
    Json,
}

impl Lines {
    pub fn to_stderr(format: LogFormat) -> Self {
        match format {
            LogFormat::Json => Lines::Json,
            LogFormat::Text if io::stderr().is_terminal() => Lines::Coloured,
            LogFormat::Text => Lines::Plain,
        }
    }

    pub fn has_colours(self) -> bool {
        matches!(self, Lines::Coloured)
    }

    /// A line with its control characters escaped, except for colours.
    fn printable(self, line: &str) -> String {
        match self {
            Lines::Plain => commands::printable_in_line(line),
            Lines::Coloured => printable_with_colours(line),
            Lines::Json => json_without_controls(line),
        }
    }
}

fn printable_with_colours(line: &str) -> String {
    let mut pieces = line.split(COLOUR_PREFIX);
    let mut printable = commands::printable_in_line(pieces.next().unwrap_or_default());
    for piece in pieces {
        match colour_bytes(piece) {
            Some(bytes) => {
                let (colour, text) = piece.split_at(bytes);
                printable += COLOUR_PREFIX;
                printable += colour;
                printable += &commands::printable_in_line(text);
            }
            None => {
                printable += &commands::printable_in_line(COLOUR_PREFIX);
                printable += &commands::printable_in_line(piece);
            }
        }
    }
    printable
}

/// How many bytes of a text that follows [`COLOUR_PREFIX`] belong to the colour, if it is one.
fn colour_bytes(text: &str) -> Option<usize> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != ';')?;
    text[end..].starts_with('m').then_some(end + 1)
}

/// `serde_json` escapes control characters of ASCII except for DEL.
fn json_without_controls(line: &str) -> String {
    let escaped = |char: char| match char.is_control() {
        true => format!("\\u{:04x}", u32::from(char)),
        false => char.to_string(),
    };
    line.chars().map(escaped).collect()
}

impl Write for Lines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let mut written = self.printable(line);
        written += &text[line.len()..];
        io::stderr().write_all(written.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "\x1b[1;31mERROR\x1b[0m a\x1b[2Jb\x7f\u{9b}c\t";

    #[test]
    fn only_colours_of_a_terminal_keep_their_control_characters() {
        let coloured = "\x1b[1;31mERROR\x1b[0m a\\u{1b}[2Jb\\u{7f}\\u{9b}c\\t";
        assert_eq!(Lines::Coloured.printable(LINE), coloured);
        let plain = "\\u{1b}[1;31mERROR\\u{1b}[0m a\\u{1b}[2Jb\\u{7f}\\u{9b}c\\t";
        assert_eq!(Lines::Plain.printable(LINE), plain);
    }

    #[test]
    fn json_without_control_characters_has_the_same_value() {
        let json = serde_json::to_string(LINE).unwrap();
        let printable = Lines::Json.printable(&json);
        assert!(!printable.contains(char::is_control), "{printable:?}");
        assert_eq!(serde_json::from_str::<String>(&printable).unwrap(), LINE);
    }
}
