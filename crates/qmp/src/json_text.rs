//! JSON text as QEMU writes it, with a space after each comma and colon: scripts look for `"return": {}`.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Formats JSON on one line, with spaces.
struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// A value as text on one line.
#[must_use]
pub fn json_to_text(value: &Value) -> String {
    let mut text = Vec::new();
    append_json(&mut text, value, false);
    String::from_utf8(text).unwrap_or_default()
}

/// Appends a value as text: on one line, or, if `pretty`, with one line for each member.
pub(crate) fn append_json(into: &mut Vec<u8>, value: &Value, pretty: bool) {
    let written = if pretty {
        let format = PrettyFormatter::with_indent(b"    ");
        value.serialize(&mut Serializer::with_formatter(into, format))
    } else {
        value.serialize(&mut Serializer::with_formatter(into, SpacedFormatter))
    };
    debug_assert!(written.is_ok(), "writing to a vector cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_spaces_where_qemu_has_them() {
        let value = serde_json::json!({"a": [1, "x,y:z", []], "b": {}, "c": {"d": null}});
        let text = r#"{"a": [1, "x,y:z", []], "b": {}, "c": {"d": null}}"#;
        assert_eq!(json_to_text(&value), text);
    }
}
