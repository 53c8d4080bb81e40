//! The tree that both notations, key=value and JSON, are parsed into.
//!
//! The two differ in one thing only: in key=value everything is text until somebody asks for it
//! as a number or a switch, in JSON a value has its type from the start. [`Value::Text`] keeps
//! that difference; [`crate::form`] is where it is resolved.

/// One value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// From key=value: a string, number or switch; who reads it decides.
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
    /// How the value was written, roughly, for an error.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) | Self::String(text) | Self::Number(text) => crate::error::shown(text),
            Self::Bool(value) => value.to_string(),
            Self::Null => "null".to_owned(),
            Self::List(_) => "[…]".to_owned(),
            Self::Object(_) => "{…}".to_owned(),
        }
    }
}

/// Keys with their values, each key once, in the order in which they first appeared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Object {
    pub(crate) entries: Vec<(String, Value)>,
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

    /// Sets the value of a key that is not there yet. A dot in it stands for an object in an object.
    pub(crate) fn set(&mut self, path: &str, value: Value) {
        let Some((group, rest)) = path.split_once('.') else {
            return self.push(path.to_owned(), value);
        };
        if self.get(group).is_none() {
            self.push(group.to_owned(), Value::Object(Object::default()));
        }
        if let Some(Value::Object(inside)) = self.get_mut(group) {
            inside.set(rest, value);
        }
    }

    /// Adds a key that is not there yet.
    pub(crate) fn push(&mut self, key: String, value: Value) {
        debug_assert!(self.get(&key).is_none());
        self.entries.push((key, value));
    }
}
