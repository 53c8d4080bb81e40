//! Splits the bytes of a QMP client into JSON messages, without parsing them.
//!
//! Messages may follow each other without white space, so the end of one is found by counting brackets. Strings in single
//! quotes, which QEMU also accepts, become standard JSON on the way. After an error all bytes are skipped up to the next
//! control character (such as the end of a line) or a byte 0xFE or 0xFF, which no text contains: with these a client can resynchronize.

use crate::limits::{MAX_DEPTH, MAX_MESSAGE_BYTES};

/// A part of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The bytes of a message. They are balanced, but not yet known to be JSON.
    Message(Vec<u8>),
    /// Bytes that cannot be a message, with the reason.
    Bad(String),
}

/// The position of the next byte in a message.
#[derive(Clone, Copy)]
enum FramerState {
    /// Outside of strings, or between messages.
    Plain,
    /// In a string that ends with this quote.
    String(u8),
    /// After a backslash in a string.
    Escape(u8),
    /// In a number or word outside of brackets.
    Word,
    /// After an error.
    Skipping,
}

/// Splits a stream into messages.
pub(crate) struct Framer {
    state: FramerState,
    /// The bytes of the message so far, as standard JSON.
    text: Vec<u8>,
    /// The closing brackets that are still to come, the next one last.
    closing_brackets: Vec<u8>,
}

impl Default for Framer {
    fn default() -> Self {
        Framer {
            state: FramerState::Plain,
            text: Vec::new(),
            closing_brackets: Vec::new(),
        }
    }
}

impl Framer {
    /// Consumes bytes of `bytes` until a part is complete; `None` when they are used up.
    pub fn next_frame(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if matches!(self.state, FramerState::Word) && !is_word_byte(byte) {
                // This byte belongs to the next message.
                return Some(self.complete_message());
            }
            *bytes = rest;
            let frame = self.process_byte(byte);
            if frame.is_some() {
                return frame;
            }
            if self.text.len() > MAX_MESSAGE_BYTES {
                let text = format!("a message has more than {MAX_MESSAGE_BYTES} bytes");
                return Some(self.fail_and_skip(text));
            }
        }
        None
    }

    /// Processes one byte. Returns the part that ends with it.
    fn process_byte(&mut self, byte: u8) -> Option<Frame> {
        match self.state {
            FramerState::Skipping => {
                if ends_skipping_after_error(byte) {
                    self.state = FramerState::Plain;
                }
                None
            }
            _ if byte >= 0xfe => Some(self.fail_and_resume(stray_byte_text(byte))),
            FramerState::Plain => self.process_plain_byte(byte),
            FramerState::Word => {
                self.text.push(byte);
                None
            }
            FramerState::String(_) | FramerState::Escape(_) if byte < b' ' => {
                let text = format!("{} in a string", stray_byte_text(byte));
                Some(self.fail_and_resume(text))
            }
            FramerState::String(quote) => {
                if byte == quote {
                    self.text.push(b'"');
                    self.state = FramerState::Plain;
                    return self
                        .closing_brackets
                        .is_empty()
                        .then(|| self.complete_message());
                }
                match byte {
                    b'\\' => self.state = FramerState::Escape(quote),
                    // In a string in single quotes it needs no escape.
                    b'"' => self.text.extend(b"\\\""),
                    _ => self.text.push(byte),
                }
                None
            }
            FramerState::Escape(quote) => {
                if byte != b'\'' {
                    self.text.push(b'\\');
                }
                self.text.push(byte);
                self.state = FramerState::String(quote);
                None
            }
        }
    }

    /// Processes a byte outside of strings.
    fn process_plain_byte(&mut self, byte: u8) -> Option<Frame> {
        match byte {
            b'{' | b'[' => {
                if self.closing_brackets.len() == MAX_DEPTH {
                    let text = format!("more than {MAX_DEPTH} objects and lists inside each other");
                    return Some(self.fail_and_skip(text));
                }
                self.closing_brackets
                    .push(if byte == b'{' { b'}' } else { b']' });
                self.text.push(byte);
                None
            }
            b'}' | b']' => {
                if self.closing_brackets.pop() != Some(byte) {
                    return Some(self.fail_and_resume("expecting value".to_owned()));
                }
                self.text.push(byte);
                self.closing_brackets
                    .is_empty()
                    .then(|| self.complete_message())
            }
            b'"' | b'\'' => {
                self.text.push(b'"');
                self.state = FramerState::String(byte);
                None
            }
            b' ' | b'\t' | b'\r' | b'\n' => {
                if !self.closing_brackets.is_empty() {
                    self.text.push(byte);
                }
                None
            }
            b':' | b',' if self.closing_brackets.is_empty() => {
                Some(self.fail_and_resume("expecting value".to_owned()))
            }
            b':' | b',' => {
                self.text.push(byte);
                None
            }
            _ if is_word_byte(byte) => {
                self.text.push(byte);
                if self.closing_brackets.is_empty() {
                    self.state = FramerState::Word;
                }
                None
            }
            _ if ends_skipping_after_error(byte) => {
                Some(self.fail_and_resume(stray_byte_text(byte)))
            }
            _ => Some(self.fail_and_skip(stray_byte_text(byte))),
        }
    }

    /// Returns the message that is complete, and begins the next.
    fn complete_message(&mut self) -> Frame {
        self.state = FramerState::Plain;
        Frame::Message(std::mem::take(&mut self.text))
    }

    /// Returns an error after which the next byte may begin a message.
    fn fail_and_resume(&mut self, text: String) -> Frame {
        *self = Framer::default();
        Frame::Bad(text)
    }

    /// Returns an error after which bytes are skipped.
    fn fail_and_skip(&mut self, text: String) -> Frame {
        *self = Framer {
            state: FramerState::Skipping,
            ..Framer::default()
        };
        Frame::Bad(text)
    }
}

/// Whether a byte may be part of a number, or of a word such as `true`.
fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

/// Whether a byte is a control character, or in no text: it ends the skipping after an error.
fn ends_skipping_after_error(byte: u8) -> bool {
    !(b' '..0xfe).contains(&byte)
}

/// The reason why a byte is an error.
fn stray_byte_text(byte: u8) -> String {
    format!("stray '{}'", byte.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(stream: &[u8], step: usize) -> Vec<Result<String, String>> {
        let mut framer = Framer::default();
        let mut found = Vec::new();
        for mut bytes in stream.chunks(step) {
            while let Some(frame) = framer.next_frame(&mut bytes) {
                found.push(match frame {
                    Frame::Message(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
                    Frame::Bad(text) => Err(text),
                });
            }
        }
        found
    }

    #[track_caller]
    fn check(stream: &[u8], expected: &[Result<&str, &str>]) {
        let owned = |frame: &Result<&str, &str>| frame.map(str::to_owned).map_err(str::to_owned);
        let expected: Vec<_> = expected.iter().map(owned).collect();
        for step in [1, 3, 1000] {
            assert_eq!(frames(stream, step), expected, "in pieces of {step}");
        }
    }

    #[test]
    fn messages_end_where_their_brackets_close() {
        let messages = [
            r#"{"a":[1,{}]}"#,
            "[2]",
            r#"{"b}":"\"]"}"#,
            "\"x\"",
            "12",
            "{}",
        ];
        check(messages.join(" ").as_bytes(), &messages.map(Ok));
        check(br#"{"a":1}[2]{}"#, &[r#"{"a":1}"#, "[2]", "{}"].map(Ok));
        check(b"{ \"a\"\n: 1\r\n}\n", &[Ok("{ \"a\"\n: 1\r\n}")]);
        check(b"{\"a\": ", &[]);
    }

    #[test]
    fn single_quotes_become_double_quotes() {
        check(
            br#"{'a"b': 'it\'s', "c\'": '\n\\'}"#,
            &[Ok(r#"{"a\"b": "it's", "c'": "\n\\"}"#)],
        );
    }

    #[test]
    fn after_an_error_messages_are_read_from_the_next_line() {
        check(b"@ {\"no\":1}\n{}", &[Err("stray '@'"), Ok("{}")]);
        check(b"{\"a\n{}", &[Err("stray '\\n' in a string"), Ok("{}")]);
        check(b"{\"a\xff{}", &[Err("stray '\\xff'"), Ok("{}")]);
        check(b"{\"a\": \x01{}", &[Err("stray '\\x01'"), Ok("{}")]);
        check(b"{]{}", &[Err("expecting value"), Ok("{}")]);
        check(b"} , :", &[Err("expecting value"); 3]);
        check("{\"ä\":ä\n[]".as_bytes(), &[Err("stray '\\xc3'"), Ok("[]")]);
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let deep = |depth| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(frames(&deep(MAX_DEPTH), 1000).len(), 1);
        let too_deep = deep(MAX_DEPTH + 1);
        let too_long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_MESSAGE_BYTES));
        for (bytes, limit) in [(too_deep, "64"), (too_long.into(), "1048576")] {
            let found = frames(&[&bytes[..], b"\n{}"].concat(), 4096);
            assert!(found[0].as_ref().unwrap_err().contains(limit), "{found:?}");
            assert_eq!(found[1..], [Ok("{}".to_owned())]);
        }
    }

    proptest! {
        #[test]
        fn a_message_after_0xff_and_a_newline_is_read_after_any_bytes(
            noise in proptest::collection::vec(any::<u8>(), 0..300)
        ) {
            let mut stream = noise;
            stream.extend(b"\xff\n{\"execute\":\"x\"}");
            let found = frames(&stream, 1000);
            prop_assert_eq!(found.last().unwrap(), &Ok("{\"execute\":\"x\"}".to_owned()));
        }
    }
}
