//! Typed access to the keys of one option.
//!
//! Each option has a table of its keys. A key that is not in the table is reported before any value
//! is looked at, so that a misspelt required key is called misspelt and not missing. The
//! same table prints the option's help, so the two cannot differ.

use crate::{
    Problem,
    size::{self, NumberError},
    suggest,
    tree::{Object, Value},
};

/// One key of an option.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Dotted name. A nested table of another kind (`file` of `raw`) is one key here.
    pub name: &'static str,
    /// What its value looks like, for the help.
    pub value: &'static str,
    /// What it is for, with unit and default.
    pub help: &'static str,
}

/// A key or choice that qemu-storage-daemon has and we do not.
pub(crate) struct NotYet {
    pub(crate) name: &'static str,
    /// What to do instead.
    pub(crate) instead: &'static str,
}

/// The keys of one option, each checked to be known.
pub(crate) struct Fields {
    prefix: String,
    values: Vec<(&'static str, Value)>,
}

impl Fields {
    /// Takes `object` apart along `tables`. `prefix` is what comes before its keys on the command
    /// line, with its dot.
    pub(crate) fn new(
        object: Object,
        prefix: &str,
        tables: &[&[Key]],
        not_yet: &[NotYet],
    ) -> Result<Self, Problem> {
        let names: Vec<&'static str> = tables
            .iter()
            .flat_map(|table| table.iter())
            .map(|key| key.name)
            .collect();
        let mut fields = Self {
            prefix: prefix.to_owned(),
            values: Vec::new(),
        };
        fields.flatten(object, "", &names, not_yet)?;
        Ok(fields)
    }

    fn flatten(
        &mut self,
        object: Object,
        group: &str,
        names: &[&'static str],
        not_yet: &[NotYet],
    ) -> Result<(), Problem> {
        for (key, value) in object.entries {
            let path = format!("{group}{key}");
            // JSON keys may hold anything; a dot in one must not pass for nesting.
            let known = if key.contains('.') {
                None
            } else {
                names.iter().find(|name| **name == path)
            };
            if let Some(name) = known {
                self.values.push((name, value));
                continue;
            }
            let below = format!("{path}.");
            if let Some(inside) = names.iter().find(|name| name.starts_with(&below)) {
                match value {
                    Value::Object(inner) => self.flatten(inner, &below, names, not_yet)?,
                    other => {
                        let expected = format!("a group, such as {}{inside}=…", self.prefix);
                        return Err(self.bad(&path, &other, &expected));
                    }
                }
                continue;
            }
            let key = format!("{}{path}", self.prefix);
            if let Some(not_yet) = not_yet.iter().find(|n| n.name == path) {
                return Err(Problem::Unsupported {
                    what: format!("'{key}'"),
                    instead: not_yet.instead.to_owned(),
                });
            }
            let suggestion = suggest::closest(&path, names.iter().copied())
                .map(|name| format!("{}{name}", self.prefix));
            let known = names
                .iter()
                .map(|name| format!("{}{name}", self.prefix))
                .collect();
            return Err(Problem::UnknownKey {
                key: crate::error::shown(&key),
                suggestion,
                known,
            });
        }
        Ok(())
    }

    /// The full name of a key.
    pub(crate) fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn bad(&self, key: &str, value: &Value, expected: &str) -> Problem {
        Problem::BadValue {
            key: self.path(key),
            value: value.shown(),
            expected: expected.to_owned(),
        }
    }

    /// A value that its reader found wrong.
    pub(crate) fn bad_text(&self, key: &str, value: &str, expected: &str) -> Problem {
        Problem::BadValue {
            key: self.path(key),
            value: crate::error::shown(value),
            expected: expected.to_owned(),
        }
    }

    /// Takes a value of any shape.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Value> {
        let position = self.values.iter().position(|(name, _)| *name == key)?;
        Some(self.values.swap_remove(position).1)
    }

    /// Whether the key is there and was not taken yet.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.values.iter().any(|(name, _)| *name == key)
    }

    /// Takes a value that may also be a list of values; each with its full name, none if the key is
    /// not there. A list that is there has at least one member.
    pub(crate) fn one_or_list(
        &mut self,
        key: &'static str,
    ) -> Result<Vec<(String, Value)>, Problem> {
        let items = match self.take(key) {
            None => return Ok(Vec::new()),
            Some(Value::List(items)) => items,
            Some(one) => return Ok(vec![(self.path(key), one)]),
        };
        if items.is_empty() {
            let expected = "at least one member, or leave it out";
            return Err(self.bad(key, &Value::List(items), expected));
        }
        let path = self.path(key);
        let numbered = items.into_iter().enumerate();
        Ok(numbered
            .map(|(i, item)| (format!("{path}.{i}"), item))
            .collect())
    }

    /// Takes a string.
    pub(crate) fn string(&mut self, key: &'static str) -> Result<Option<String>, Problem> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Text(text) | Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.bad(key, &other, "a string")),
        }
    }

    /// Takes a string that must be there.
    pub(crate) fn required(
        &mut self,
        key: &'static str,
        expected: &str,
    ) -> Result<String, Problem> {
        self.string(key)?.ok_or_else(|| Problem::Missing {
            key: self.path(key),
            expected: expected.to_owned(),
        })
    }

    /// Takes a name by which options refer to each other: a letter, then letters, digits, `-`, `.`
    /// and `_`.
    pub(crate) fn identifier(
        &mut self,
        key: &'static str,
        longest: usize,
    ) -> Result<Option<String>, Problem> {
        let Some(name) = self.string(key)? else {
            return Ok(None);
        };
        let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
            && name.len() <= longest;
        if well_formed {
            return Ok(Some(name));
        }
        let expected =
            format!("a letter, then letters, digits, '-', '.' or '_', at most {longest} in all");
        Err(self.bad_text(key, &name, &expected))
    }

    /// Takes a switch.
    pub(crate) fn boolean(&mut self, key: &'static str) -> Result<Option<bool>, Problem> {
        let value = self.take(key);
        match &value {
            None => return Ok(None),
            Some(Value::Bool(value)) => return Ok(Some(*value)),
            Some(Value::Text(text)) => match text.as_str() {
                "on" | "yes" | "true" | "y" => return Ok(Some(true)),
                "off" | "no" | "false" | "n" => return Ok(Some(false)),
                _ => {}
            },
            Some(_) => {}
        }
        let expected = match &value {
            Some(Value::Text(_)) => "'on' or 'off'",
            _ => "true or false",
        };
        Err(self.bad(key, &value.unwrap_or(Value::Null), expected))
    }

    /// Takes a whole number from `min` to `max`.
    pub(crate) fn number(
        &mut self,
        key: &'static str,
        min: u64,
        max: u64,
    ) -> Result<Option<u64>, Problem> {
        self.ranged(key, min, max, size::integer, NUMBER_EXPECTED)
    }

    /// As [`Self::number`], for a 32-bit setting.
    pub(crate) fn number_u32(
        &mut self,
        key: &'static str,
        min: u32,
        max: u32,
    ) -> Result<Option<u32>, Problem> {
        let number = self.number(key, min.into(), max.into())?;
        // The range above is that of the type, so the conversion cannot fail.
        Ok(number.and_then(|n| u32::try_from(n).ok()))
    }

    /// Takes a size in bytes; in JSON a number, in text possibly with a suffix.
    pub(crate) fn size(
        &mut self,
        key: &'static str,
        min: u64,
        max: u64,
    ) -> Result<Option<u64>, Problem> {
        self.ranged(
            key,
            min,
            max,
            size::size,
            "a size in bytes, or with a suffix B, K, M, G, T, P or E, such as 1.5G",
        )
    }

    fn ranged(
        &mut self,
        key: &'static str,
        min: u64,
        max: u64,
        read: fn(&str) -> Result<u64, NumberError>,
        expected: &str,
    ) -> Result<Option<u64>, Problem> {
        let value = self.take(key);
        let read = |value: Value| ranged(self.path(key), &value, min, max, read, expected);
        value.map(read).transpose()
    }

    /// Takes one of several words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
        not_yet: &[NotYet],
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.string(key)? else {
            return Ok(None);
        };
        pick(&self.path(key), &text, choices, not_yet).map(Some)
    }

    /// Accepts a switch that can only be off for now.
    pub(crate) fn must_be_off(&mut self, key: &'static str, instead: &str) -> Result<(), Problem> {
        if self.boolean(key)? == Some(true) {
            return Err(Problem::Unsupported {
                what: format!("'{}=on'", self.path(key)),
                instead: instead.to_owned(),
            });
        }
        Ok(())
    }

    /// Ends the reading. A key that is in the table but that nobody took would be silently ignored.
    pub(crate) fn finish(self) {
        debug_assert!(
            self.values.is_empty(),
            "keys that nobody reads: {:?}",
            self.values
        );
    }
}

/// What a whole number must be.
const NUMBER_EXPECTED: &str = "a whole number, decimal or 0x hexadecimal";

/// Reads a whole number that is not the value of a key, such as a member of a list.
pub(crate) fn number(path: String, value: &Value, min: u64, max: u64) -> Result<u64, Problem> {
    ranged(path, value, min, max, size::integer, NUMBER_EXPECTED)
}

fn ranged(
    key: String,
    value: &Value,
    min: u64,
    max: u64,
    read: fn(&str) -> Result<u64, NumberError>,
    expected: &str,
) -> Result<u64, Problem> {
    let number = match value {
        Value::Text(text) => read(text),
        Value::Number(text) => size::integer(text),
        _ => Err(NumberError::Malformed),
    };
    let shown = value.shown();
    match number {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        Ok(_) | Err(NumberError::Negative | NumberError::TooLarge) => Err(Problem::OutOfRange {
            key,
            value: shown,
            min,
            max,
        }),
        Err(NumberError::Malformed) => Err(Problem::BadValue {
            key,
            value: shown,
            expected: match value {
                Value::Text(_) => expected,
                _ => "a whole number without quotes",
            }
            .to_owned(),
        }),
    }
}

/// Finds `text` among `choices`; a choice of qemu-storage-daemon's that we lack is told apart from one
/// that nobody knows.
pub(crate) fn pick<T: Copy>(
    key: &str,
    text: &str,
    choices: &[(&'static str, T)],
    not_yet: &[NotYet],
) -> Result<T, Problem> {
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*choice);
    }
    if let Some(not_yet) = not_yet.iter().find(|n| n.name == text) {
        return Err(Problem::Unsupported {
            what: format!("'{key}={text}'"),
            instead: not_yet.instead.to_owned(),
        });
    }
    let names = || choices.iter().map(|(name, _)| *name);
    Err(Problem::UnknownChoice {
        key: key.to_owned(),
        value: crate::error::shown(text),
        suggestion: suggest::closest(text, names()).map(str::to_owned),
        known: names().map(str::to_owned).collect(),
    })
}

/// Finds the kind of an option (driver, type) before its table is known. `not_yet` are those that only
/// qemu-storage-daemon has.
pub(crate) fn kind<T: Copy>(
    object: &Object,
    prefix: &str,
    key: &str,
    choices: &[(&'static str, T)],
    not_yet: &[&str],
) -> Result<T, Problem> {
    let path = format!("{prefix}{key}");
    let names = || {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    };
    match object.get(key) {
        Some(Value::Text(text) | Value::String(text)) if not_yet.contains(&text.as_str()) => {
            Err(Problem::Unsupported {
                what: format!("'{path}={text}'"),
                instead: format!("supported: {}", names()),
            })
        }
        Some(Value::Text(text) | Value::String(text)) => pick(&path, text, choices, &[]),
        Some(other) => Err(Problem::BadValue {
            key: path,
            value: other.shown(),
            expected: "a string".to_owned(),
        }),
        None => Err(Problem::Missing {
            key: path,
            expected: format!("one of {}", names()),
        }),
    }
}
