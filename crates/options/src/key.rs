//! Keys of options: their names, the types of their values, and what qemu-storage-daemon has beyond them.

use crate::{
    Problem, suggest,
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
    /// Its type in the QMP schema.
    pub r#type: ValueType,
    /// Whether it has to be there.
    pub required: bool,
}

impl Key {
    /// A key. `help` may be a doc comment as it stands.
    pub(crate) const fn new(
        name: &'static str,
        value: &'static str,
        help: &'static str,
        r#type: ValueType,
    ) -> Self {
        Key {
            name,
            value,
            help: help.trim_ascii_start(),
            r#type,
            required: false,
        }
    }

    /// The same, which has to be there.
    pub(crate) const fn required(self) -> Self {
        Key {
            required: true,
            ..self
        }
    }
}

/// The type of a key's value, as the QMP schema has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// A boolean.
    Bool,
    /// A whole number.
    Int,
    /// A string.
    Str,
    /// One of the words that [`Key::value`] has with `|` between them.
    Words,
    /// A type that the schema defines by this name.
    Named(&'static str),
    /// A list of these.
    ListOf(&'static str),
}

/// A key or choice that qemu-storage-daemon has and we do not.
pub(crate) struct NotYet {
    pub(crate) name: &'static str,
    /// What to do instead.
    pub(crate) instead: &'static str,
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
