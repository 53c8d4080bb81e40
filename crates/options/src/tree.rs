//! Tree of values that all notations (key=value, JSON, TOML) are parsed into, before their keys are checked.
//!
//! In key=value all values are text until their key is known; in JSON values have types. [`Value::Text`] keeps that difference
//! until [`crate::form`] reads the value.

use std::fmt;

/// One value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// From key=value: a string, a number or a switch; the form of its key decides.
    Text(String),
    /// A JSON string.
    String(String),
    /// A JSON number, as it was written.
    Number(String),
    /// A JSON `true` or `false`.
    Bool(bool),
    /// A JSON `null`.
    Null,
    /// A list.
    List(Vec<Value>),
    /// A group of keys.
    Object(Object),
}

impl Value {
    /// The beginning of the value as it was written, for an error.
    pub(crate) fn excerpt(&self) -> String {
        match self {
            Self::Text(text) | Self::String(text) | Self::Number(text) => {
                crate::error::excerpt(text)
            }
            Self::Bool(value) => value.to_string(),
            Self::Null => "null".to_owned(),
            Self::List(_) => "[…]".to_owned(),
            Self::Object(_) => "{…}".to_owned(),
        }
    }
}

/// The key of a value that is not to be shown: the content of a secret.
pub(crate) const HIDDEN_KEY: &str = "data";

/// Keys with their values, each key once, in the order in which they first appeared.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Object {
    pub(crate) entries: Vec<(String, Value)>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (key, value) in &self.entries {
            match key.as_str() {
                HIDDEN_KEY => map.entry(key, &format_args!("…")),
                _ => map.entry(key, value),
            };
        }
        map.finish()
    }
}

impl Object {
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.entries
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.entries
            .iter_mut()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value)
    }

    /// Sets the value of a new key. Dots in it separate nested objects.
    pub(crate) fn push_dotted_key(&mut self, path: &str, value: Value) {
        let Some((group, rest)) = path.split_once('.') else {
            return self.push(path.to_owned(), value);
        };
        if self.get(group).is_none() {
            self.push(group.to_owned(), Value::Object(Object::default()));
        }
        if let Some(Value::Object(inside)) = self.get_mut(group) {
            inside.push_dotted_key(rest, value);
        }
    }

    /// Adds a new key.
    pub(crate) fn push(&mut self, key: String, value: Value) {
        debug_assert!(self.get(&key).is_none());
        self.entries.push((key, value));
    }
}
