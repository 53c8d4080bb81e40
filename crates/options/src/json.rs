//! Parses `{…}`, the JSON notation of qemu-storage-daemon's options.
//!
//! JSON (RFC 8259) with two deviations of qemu-storage-daemon, since scripts rely on them: strings may be in single quotes, and a
//! duplicate key in an object is an error. Numbers are kept as text, so that range checks see all digits.

use crate::{
    Problem,
    tree::{Object, Value},
};

/// Deepest nesting. It protects the stack of the parser; no option comes near.
const MAX_DEPTH: u32 = 64;

/// Parses one JSON object, which must be the whole text.
pub(crate) fn parse(text: &str) -> Result<Object, Problem> {
    let mut parser = JsonParser { text, at: 0 };
    let value = parser.parse_value(0)?;
    parser.skip_blanks();
    if parser.at < text.len() {
        return Err(parser.error_here("nothing after the closing brace"));
    }
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(Problem::Syntax {
            reason: "the JSON value is not an object: expected {…}".to_owned(),
        }),
    }
}

/// A text with the position up to which it is parsed.
struct JsonParser<'a> {
    text: &'a str,
    /// Offset in bytes, always at the start of a character.
    at: usize,
}

impl JsonParser<'_> {
    /// The error at the current position.
    fn error_here(&self, expected: &str) -> Problem {
        let found = match self.peek() {
            Some(c) => format!("found '{}'", c.escape_debug()),
            None => "the text ends".to_owned(),
        };
        Problem::Syntax {
            reason: format!(
                "malformed JSON at byte {}: {found}, expected {expected}",
                self.at
            ),
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Moves behind the next character if it is the one wanted.
    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    /// Reads a value of any type, below `depth` objects and lists.
    fn parse_value(&mut self, depth: u32) -> Result<Value, Problem> {
        if depth > MAX_DEPTH {
            return Err(self.error_here(&format!("at most {MAX_DEPTH} levels of nesting")));
        }
        self.skip_blanks();
        match self.peek() {
            Some('{') => self.parse_object(depth),
            Some('[') => self.parse_list(depth),
            Some('"' | '\'') => self.parse_string().map(Value::String),
            Some('-' | '0'..='9') => self.parse_number(),
            _ => {
                for (word, value) in [
                    ("true", Value::Bool(true)),
                    ("false", Value::Bool(false)),
                    ("null", Value::Null),
                ] {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.error_here("a value"))
            }
        }
    }

    /// Reads an object. The next character is its opening brace.
    fn parse_object(&mut self, depth: u32) -> Result<Value, Problem> {
        self.eat('{');
        let mut object = Object::default();
        self.skip_blanks();
        if self.eat('}') {
            return Ok(Value::Object(object));
        }
        loop {
            self.skip_blanks();
            if !matches!(self.peek(), Some('"' | '\'')) {
                return Err(self.error_here("a key in quotes"));
            }
            let key_at = self.at;
            let key = self.parse_string()?;
            if object.get(&key).is_some() {
                self.at = key_at;
                return Err(self.error_here(&format!(
                    "each key once, but '{}' appears twice",
                    crate::error::excerpt(&key)
                )));
            }
            self.skip_blanks();
            if !self.eat(':') {
                return Err(self.error_here("':'"));
            }
            let value = self.parse_value(depth + 1)?;
            object.push(key, value);
            self.skip_blanks();
            if self.eat('}') {
                return Ok(Value::Object(object));
            }
            if !self.eat(',') {
                return Err(self.error_here("',' or '}'"));
            }
        }
    }

    /// Reads a list. The next character is its opening bracket.
    fn parse_list(&mut self, depth: u32) -> Result<Value, Problem> {
        self.eat('[');
        let mut list = Vec::new();
        self.skip_blanks();
        if self.eat(']') {
            return Ok(Value::List(list));
        }
        loop {
            list.push(self.parse_value(depth + 1)?);
            self.skip_blanks();
            if self.eat(']') {
                return Ok(Value::List(list));
            }
            if !self.eat(',') {
                return Err(self.error_here("',' or ']'"));
            }
        }
    }

    /// Reads a number, and keeps its text.
    fn parse_number(&mut self) -> Result<Value, Problem> {
        let start = self.at;
        self.eat('-');
        if !self.eat('0') {
            self.expect_digits()?;
        }
        if self.eat('.') {
            self.expect_digits()?;
        }
        if self.eat('e') || self.eat('E') {
            let _ = self.eat('+') || self.eat('-');
            self.expect_digits()?;
        }
        Ok(Value::Number(self.text[start..self.at].to_owned()))
    }

    /// Moves behind one or more digits.
    fn expect_digits(&mut self) -> Result<(), Problem> {
        let start = self.at;
        while matches!(self.peek(), Some('0'..='9')) {
            self.at += 1;
        }
        if self.at == start {
            Err(self.error_here("a digit"))
        } else {
            Ok(())
        }
    }

    /// Reads a string. The next character is its quote, double or single.
    fn parse_string(&mut self) -> Result<String, Problem> {
        let quote = self.next();
        let mut out = String::new();
        loop {
            match self.peek() {
                Some(c) if Some(c) == quote => {
                    self.at += 1;
                    return Ok(out);
                }
                Some('\\') => {
                    self.at += 1;
                    out.push(self.parse_escape()?);
                }
                Some(c) if c >= ' ' => {
                    out.push(c);
                    self.at += c.len_utf8();
                }
                _ => return Err(self.error_here("the rest of a string")),
            }
        }
    }

    /// Reads what follows a backslash, and returns the character that it stands for.
    fn parse_escape(&mut self) -> Result<char, Problem> {
        let simple = match self.peek() {
            Some(c @ ('"' | '\'' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => return self.parse_unicode_escape(),
            _ => return Err(self.error_here("an escape such as \\n or \\u00e9")),
        };
        self.at += 1;
        Ok(simple)
    }

    /// Reads `uXXXX`, or the two that are a surrogate pair.
    fn parse_unicode_escape(&mut self) -> Result<char, Problem> {
        let first = self.parse_u_and_hex_digits()?;
        let code = if (0xd800..0xdc00).contains(&first) {
            // RFC 8259, section 7: beyond the basic plane a character is a pair of surrogates.
            let second = if self.eat('\\') {
                self.parse_u_and_hex_digits()?
            } else {
                0
            };
            if !(0xdc00..0xe000).contains(&second) {
                return Err(self.error_here("the second half of a surrogate pair before this"));
            }
            0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        char::from_u32(code).ok_or_else(|| self.error_here("a surrogate pair before this"))
    }

    /// Reads `u` and four hexadecimal digits.
    fn parse_u_and_hex_digits(&mut self) -> Result<u32, Problem> {
        if !self.eat('u') {
            return Err(self.error_here("\\u and four hexadecimal digits"));
        }
        let mut code = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return Err(self.error_here("a hexadecimal digit"));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The tree as a value of an independent implementation. Text without a type is a string.
    pub(crate) fn to_serde_json(value: &Value) -> serde_json::Value {
        match value {
            Value::Text(text) | Value::String(text) => text.as_str().into(),
            Value::Number(text) => serde_json::from_str(text).unwrap(),
            Value::Bool(value) => (*value).into(),
            Value::Null => serde_json::Value::Null,
            Value::List(items) => items.iter().map(to_serde_json).collect(),
            Value::Object(object) => {
                let entries = object.entries.iter();
                let entries = entries.map(|(key, value)| (key.clone(), to_serde_json(value)));
                serde_json::Value::Object(entries.collect())
            }
        }
    }

    #[test]
    fn values_of_every_type_are_read() {
        let text = r#" {"s":"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é", "n":[0,-1,1.5e+3,18446744073709551615], "b":[true,false],
            "z":null, "o":{}, "l":[]} "#;
        let ours = to_serde_json(&Value::Object(parse(text).unwrap()));
        assert_eq!(
            ours,
            serde_json::from_str::<serde_json::Value>(text).unwrap()
        );
        assert_eq!(parse(r#"{'a':'x"y\''}"#), parse(r#"{"a":"x\"y'"}"#));
    }

    #[test]
    fn malformed_text_is_refused_with_the_position() {
        for (text, part) in [
            (r#"{"a":1,"a":2}"#, "'a' appears twice"),
            (r#"{"a":1"#, "byte 6: the text ends"),
            (r#"{"a":0x10}"#, "byte 6: found 'x'"),
            (r#"{"a":1} x"#, "nothing after"),
            ("[1]", "not an object"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for text in [
            "",
            "{",
            "{}}",
            "{a:1}",
            "{'a\":1}",
            r#"{"a"}"#,
            r#"{"a":1,}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let values = r#" 01 1. 1e - tru TRUE [1,] "\x" "\u12" "\ud800" "\udc00" "\ud800\u0041""#;
        for value in values.split(' ').chain(["\"\n\"", &*"[".repeat(100_000)]) {
            assert!(parse(&format!("{{\"a\":{value}}}")).is_err(), "{value}");
        }
        let nested = format!("{{\"a\":{}{}}}", "[".repeat(60), "]".repeat(60));
        assert!(parse(&nested).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic_and_valid_json_as_by_serde_json(
            text in prop_oneof![".*", r#"\{("a":[\[\]{}"0-9.eE,:x+-]{0,12},?){0,3}\}"#]
        ) {
            let theirs = serde_json::from_str::<serde_json::Value>(&text).ok().filter(serde_json::Value::is_object);
            match parse(&text) {
                Ok(ours) => {
                    let ours = to_serde_json(&Value::Object(ours));
                    if let Some(theirs) = theirs {
                        prop_assert_eq!(ours, theirs);
                    }
                }
                Err(Problem::Syntax { reason }) => prop_assert!(
                    theirs.is_none() || reason.contains("there twice"), "refused {}: {}", text, reason
                ),
                Err(other) => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn any_string_is_read_back(text in any::<String>()) {
            let json = serde_json::json!({ "a": text }).to_string();
            let object = parse(&json).unwrap();
            prop_assert_eq!(object.get("a"), Some(&Value::String(text)));
        }
    }
}
