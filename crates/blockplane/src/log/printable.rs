//! Log events are one line each, whatever their fields contain: clients choose some of the text, such as names of exports, and must not
//! forge lines or control a terminal.

use std::io::{self, Write};

use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;

/// Format of an event's fields in the text log: the message, then `name=value`, escaped.
pub(super) fn printable_fields() -> impl for<'a> FormatFields<'a> + 'static {
    debug_fn(|writer, field, value| {
        let value = commands::printable_in_line(&format!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    })
    .delimited(" ")
}

/// Writer of JSON events to standard error. Of control characters, `serde_json` escapes only those below U+0020; terminals obey others
/// too.
pub(super) struct JsonWriter;

impl Write for JsonWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let printable = escape_in_json(&String::from_utf8_lossy(event));
        io::stderr().write_all(printable.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Escapes the characters that must be in JSON on one line: outside of strings there is none but the final newline. All are below
/// U+10000, so that four digits suffice.
fn escape_in_json(json: &str) -> String {
    let escaped = |char: char| match commands::must_be_escaped(char) && char != '\n' {
        true => format!("\\u{:04x}", u32::from(char)),
        false => char.to_string(),
    };
    json.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_without_control_characters_has_the_same_value() {
        let text = "\x1b[1m\x7f\u{9b}2J\t";
        let json = serde_json::to_string(text).unwrap();
        let printable = escape_in_json(&json);
        assert!(!printable.contains(char::is_control), "{printable:?}");
        assert_eq!(serde_json::from_str::<String>(&printable).unwrap(), text);
    }
}
