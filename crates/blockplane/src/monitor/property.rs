//! Properties of what runs: read, and changed while it works.
//!
//! What a property can be set to is checked as the option of the same name.

use qmp::Error;
use serde_json::{Value, json};

use crate::Failure;

/// A property of something that was made from options.
pub(super) struct Property<T, O> {
    name: &'static str,
    r#type: &'static str,
    get: fn(&O) -> Value,
    set: Option<Set<T, O>>,
}

/// Takes a property over from options that were checked, and makes it effective.
pub(super) type Set<T, O> = fn(&mut T, O) -> Result<(), Failure>;

/// A type of things with properties.
pub(super) struct Class<T: Tuned> {
    pub name: &'static str,
    pub properties: &'static [Property<T, T::Options>],
}

/// Something with properties.
pub(super) trait Tuned: Sized + 'static {
    type Options: 'static;

    /// What it is one of.
    fn class(&self) -> &'static Class<Self>;

    /// As it was made, and changed since.
    fn options(&self) -> &Self::Options;

    /// Options of which only this property counts, which may have any value before.
    fn checked(&self, name: &str, value: &Value) -> Result<Self::Options, Error>;
}

impl<T, O> Property<T, O> {
    /// One that never changes.
    pub const fn fixed(name: &'static str, r#type: &'static str, get: fn(&O) -> Value) -> Self {
        Property {
            name,
            r#type,
            get,
            set: None,
        }
    }

    /// One that can be changed.
    pub const fn live(
        name: &'static str,
        r#type: &'static str,
        get: fn(&O) -> Value,
        set: Set<T, O>,
    ) -> Self {
        Property {
            name,
            r#type,
            get,
            set: Some(set),
        }
    }
}

/// A property as lists show it.
pub(super) fn info(name: &str, r#type: &str) -> Value {
    json!({"name": name, "type": r#type})
}

impl<T: Tuned> Class<T> {
    /// All properties.
    pub fn list(&self) -> Value {
        let all = self.properties.iter();
        all.map(|property| info(property.name, property.r#type))
            .collect()
    }

    fn property(&self, name: &str) -> Result<&Property<T, T::Options>, Error> {
        let found = self
            .properties
            .iter()
            .find(|property| property.name == name);
        found.ok_or_else(|| no_property(self.name, name))
    }
}

pub(super) fn get<T: Tuned>(of: &T, name: &str) -> Result<Value, Error> {
    Ok((of.class().property(name)?.get)(of.options()))
}

pub(super) fn set<T: Tuned>(of: &mut T, name: &str, value: &Value) -> Result<(), Error> {
    let class = of.class();
    let property = class.property(name)?;
    let set = property.set.ok_or_else(|| not_writable(class.name, name))?;
    let expected = match property.r#type {
        "int" if !(value.is_i64() || value.is_u64()) => Some("integer"),
        "bool" if !value.is_boolean() => Some("boolean"),
        _ => None,
    };
    if let Some(expected) = expected {
        return Err(Error::generic(format!(
            "Invalid parameter type for '{name}', expected: {expected}"
        )));
    }
    let new = of.checked(name, value)?;
    set(of, new).map_err(|failure| super::errors::failed(&failure))
}

pub(super) fn no_property(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' not found"))
}

pub(super) fn not_writable(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' is not writable"))
}
