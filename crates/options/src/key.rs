//! Keys of options, with their help and type, and the choice of a value from a fixed set of words, with errors for
//! words that are unknown or that only qemu-storage-daemon supports.

use crate::{
    Problem, suggest,
    tree::{Object, Value},
};

/// One key of an option.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// Dotted name. A nested node (`file` of `raw`) is one key.
    pub name: &'static str,
    /// Placeholder of its value, for the help.
    pub placeholder: &'static str,
    /// Its purpose, unit and default, for the help.
    pub help: &'static str,
    /// Its type in the QMP schema.
    pub r#type: ValueType,
    /// Whether it is required.
    pub required: bool,
}

impl KeySpec {
    /// An optional key. `help` may begin with spaces, as doc comments do.
    pub(crate) const fn new(
        name: &'static str,
        placeholder: &'static str,
        help: &'static str,
        r#type: ValueType,
    ) -> Self {
        KeySpec {
            name,
            placeholder,
            help: help.trim_ascii_start(),
            r#type,
            required: false,
        }
    }

    /// The same key, required.
    pub(crate) const fn required(self) -> Self {
        KeySpec {
            required: true,
            ..self
        }
    }
}

/// The type of a key's value in the QMP schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// A boolean.
    Bool,
    /// A whole number.
    Int,
    /// A string.
    Str,
    /// One of the words in [`KeySpec::placeholder`], where `|` separates them.
    Words,
    /// A type that the schema defines by this name.
    Named(&'static str),
    /// A list of values of a type that the schema defines by this name.
    ListOf(&'static str),
}

/// A key or choice that qemu-storage-daemon supports and blockplane does not.
pub(crate) struct UnsupportedName {
    pub(crate) name: &'static str,
    /// What to do instead.
    pub(crate) instead: &'static str,
}

/// Finds `text` among `choices` and returns its meaning. The error for a choice that only qemu-storage-daemon supports
/// differs from that for an unknown one.
pub(crate) fn parse_choice<T: Copy>(
    key: &str,
    text: &str,
    choices: &[(&'static str, T)],
    unsupported: &[UnsupportedName],
) -> Result<T, Problem> {
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
        return Ok(*choice);
    }
    if let Some(unsupported) = unsupported.iter().find(|n| n.name == text) {
        return Err(Problem::Unsupported {
            what: format!("'{key}={text}'"),
            instead: unsupported.instead.to_owned(),
        });
    }
    let names = || choices.iter().map(|(name, _)| *name);
    Err(Problem::UnknownChoice {
        key: key.to_owned(),
        value: crate::error::excerpt(text),
        suggestion: suggest::closest_if_similar(text, names()).map(str::to_owned),
        known: names().map(str::to_owned).collect(),
    })
}

/// Reads the kind of an object (driver, type) from its `key`, which determines its other keys. `unsupported` are kinds
/// that only qemu-storage-daemon supports.
pub(crate) fn read_kind<T: Copy>(
    object: &Object,
    prefix: &str,
    key: &str,
    choices: &[(&'static str, T)],
    unsupported: &[&str],
) -> Result<T, Problem> {
    let path = format!("{prefix}{key}");
    let names = || {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    };
    match object.get(key) {
        Some(Value::Text(text) | Value::String(text)) if unsupported.contains(&text.as_str()) => {
            Err(Problem::Unsupported {
                what: format!("'{path}={text}'"),
                instead: format!("supported: {}", names()),
            })
        }
        Some(Value::Text(text) | Value::String(text)) => parse_choice(&path, text, choices, &[]),
        Some(other) => Err(Problem::BadValue {
            key: path,
            value: other.excerpt(),
            expected: "a string".to_owned(),
        }),
        None => Err(Problem::Missing {
            key: path,
            expected: format!("one of {}", names()),
        }),
    }
}
