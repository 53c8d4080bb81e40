//! Checks that all keys of an option are known, and takes their values one by one, each read in the form of its key.
//!
//! Each option has a table of its keys. An unknown key is reported before any value is read, so that a misspelt required key is
//! reported as misspelt and not as missing. The help is generated from the same table.

use crate::{
    Problem,
    form::{self, AnyTextForm, ValueForm},
    key::{KeySpec, UnsupportedName},
    suggest,
    tree::{Object, Value},
};

/// The keys of one option with their values; all keys are known.
pub(crate) struct Fields {
    prefix: String,
    values: Vec<(&'static str, Value)>,
}

impl Fields {
    /// Checks the keys of `object` against `tables`. `prefix` precedes the keys in errors, with its dot.
    pub(crate) fn with_known_keys(
        object: Object,
        prefix: &str,
        tables: &[&[KeySpec]],
        unsupported: &[UnsupportedName],
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
        fields.check_and_flatten(object, "", &names, unsupported)?;
        Ok(fields)
    }

    /// Checks that the keys of `object` are known, and stores their values by their dotted names. `group` precedes its
    /// keys: the object is one that is nested.
    fn check_and_flatten(
        &mut self,
        object: Object,
        group: &str,
        names: &[&'static str],
        unsupported: &[UnsupportedName],
    ) -> Result<(), Problem> {
        for (key, value) in object.entries {
            let dotted_key = format!("{group}{key}");
            // A dot in a JSON key is not nesting.
            let known = if key.contains('.') {
                None
            } else {
                names.iter().find(|name| **name == dotted_key)
            };
            if let Some(name) = known {
                self.values.push((name, value));
                continue;
            }
            let group_prefix = format!("{dotted_key}.");
            if let Some(inner_key) = names.iter().find(|name| name.starts_with(&group_prefix)) {
                match value {
                    Value::Object(inner) => {
                        self.check_and_flatten(inner, &group_prefix, names, unsupported)?
                    }
                    other => {
                        let expected = format!("a group, such as {}{inner_key}=…", self.prefix);
                        return Err(form::bad_value_error(
                            &self.full_key(&dotted_key),
                            &other,
                            expected,
                        ));
                    }
                }
                continue;
            }
            let key = self.full_key(&dotted_key);
            if let Some(unsupported) = unsupported.iter().find(|n| n.name == dotted_key) {
                return Err(Problem::Unsupported {
                    what: format!("'{key}'"),
                    instead: unsupported.instead.to_owned(),
                });
            }
            let suggestion = suggest::closest_if_similar(&dotted_key, names.iter().copied())
                .map(|name| format!("{}{name}", self.prefix));
            let known = names
                .iter()
                .map(|name| format!("{}{name}", self.prefix))
                .collect();
            return Err(Problem::UnknownKey {
                key: crate::error::excerpt(&key),
                suggestion,
                known,
            });
        }
        Ok(())
    }

    /// The full name of a key.
    pub(crate) fn full_key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The error for a wrong value of a key.
    pub(crate) fn bad_value_error(&self, key: &str, value: &str, expected: &str) -> Problem {
        Problem::BadValue {
            key: self.full_key(key),
            value: crate::error::excerpt(value),
            expected: expected.to_owned(),
        }
    }

    /// Takes a value and reads it in this form.
    pub(crate) fn take_typed<F: ValueForm>(
        &mut self,
        key: &'static str,
        form: &F,
    ) -> Result<Option<F::Value>, Problem> {
        let value = self.take_raw(key);
        value
            .map(|value| form.read(&self.full_key(key), value))
            .transpose()
    }

    /// The error for a missing key. `expected`: what to write.
    pub(crate) fn missing_key_error(&self, key: &str, expected: &str) -> Problem {
        Problem::Missing {
            key: self.full_key(key),
            expected: expected.to_owned(),
        }
    }

    /// Takes a value of any type.
    pub(crate) fn take_raw(&mut self, key: &'static str) -> Option<Value> {
        let position = self.values.iter().position(|(name, _)| *name == key)?;
        Some(self.values.swap_remove(position).1)
    }

    /// Whether this key is given and its value was not taken yet.
    pub(crate) fn contains_key(&self, key: &str) -> bool {
        self.values.iter().any(|(name, _)| *name == key)
    }

    /// Takes a value or a list of values, each with its full name; empty if the key is not given. A list needs at least one
    /// member.
    pub(crate) fn take_one_or_list(
        &mut self,
        key: &'static str,
    ) -> Result<Vec<(String, Value)>, Problem> {
        let items = match self.take_raw(key) {
            None => return Ok(Vec::new()),
            Some(Value::List(items)) => items,
            Some(one) => return Ok(vec![(self.full_key(key), one)]),
        };
        if items.is_empty() {
            let expected = "at least one member, or leave it out";
            return Err(form::bad_value_error(
                &self.full_key(key),
                &Value::List(items),
                expected,
            ));
        }
        let path = self.full_key(key);
        let numbered = items.into_iter().enumerate();
        Ok(numbered
            .map(|(i, item)| (format!("{path}.{i}"), item))
            .collect())
    }

    /// Takes a required string.
    pub(crate) fn take_required_string(
        &mut self,
        key: &'static str,
        expected: &str,
    ) -> Result<String, Problem> {
        let text = self.take_typed(key, &AnyTextForm)?;
        text.ok_or_else(|| self.missing_key_error(key, expected))
    }

    /// Checks that all values were taken: the code would ignore a key of its table otherwise.
    pub(crate) fn debug_assert_all_taken(self) {
        debug_assert!(
            self.values.is_empty(),
            "keys that are never read: {:?}",
            self.values
        );
    }
}
