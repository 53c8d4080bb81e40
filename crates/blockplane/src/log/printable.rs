//! Events are one line each, whatever their fields have: clients choose some of it, such as names of exports, and must neither forge
//! lines nor change a terminal.

use std::io::{self, Write};

use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;

/// The format of fields of text: the message, then `name=value`.
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

/// Standard error for JSON. `serde_json` escapes control characters of ASCII but DEL; a terminal obeys others too.
pub(super) struct JsonWriter;

impl Write for JsonWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let printable = without_controls_in_strings(&String::from_utf8_lossy(event));
        io::stderr().write_all(printable.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// JSON with the control characters escaped that its strings have.
fn without_controls_in_strings(json: &str) -> String {
    let escaped = |char: char| match commands::controls_layout(char) && char != '\n' {
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
        let printable = without_controls_in_strings(&json);
        assert!(!printable.contains(char::is_control), "{printable:?}");
        assert_eq!(serde_json::from_str::<String>(&printable).unwrap(), text);
    }
}
