//! Properties of objects that run: listed, read, and changed.
//!
//! They are the keys that the object was made from, and have the values that those take.

use options::{Key, ValueType};
use qmp::Error;
use serde_json::{Value, json};

/// A type of objects, and its properties.
pub(super) struct Class {
    pub name: &'static str,
    properties: Vec<Property>,
}

struct Property {
    name: &'static str,
    r#type: &'static str,
    writable: bool,
}

/// An object with properties.
pub(super) trait Tuned {
    fn class(&self) -> Class;

    /// All options as they are now, by key.
    fn describe(&self) -> Result<Value, Error>;

    /// Changes options: an object of keys with their new values.
    fn change(&mut self, json: &str) -> Result<(), Error>;
}

impl Class {
    /// With a property for each key, which can be changed if its name `is_writable`.
    pub fn new(
        name: &'static str,
        keys: impl Iterator<Item = Key>,
        is_writable: impl Fn(&str) -> bool,
    ) -> Self {
        let r#type = Property {
            name: "type",
            r#type: "string",
            writable: false,
        };
        let properties = keys.map(|key| Property {
            name: key.name,
            r#type: type_name(key.r#type),
            writable: is_writable(key.name),
        });
        let properties = std::iter::once(r#type).chain(properties).collect();
        Class { name, properties }
    }

    /// All properties.
    pub fn list(&self) -> Value {
        let all = self.properties.iter();
        all.map(|property| info(property.name, property.r#type))
            .collect()
    }

    fn property(&self, name: &str) -> Result<&Property, Error> {
        let found = self
            .properties
            .iter()
            .find(|property| property.name == name);
        found.ok_or_else(|| no_property(self.name, name))
    }
}

/// The type of a property, in QOM's words.
fn type_name(r#type: ValueType) -> &'static str {
    match r#type {
        ValueType::Bool => "bool",
        ValueType::Int => "int",
        ValueType::Str | ValueType::Words => "string",
        ValueType::ListOf("BlockExportLun") => "BlockExportLunList",
        ValueType::ListOf(_) | ValueType::Named(_) => "list",
    }
}

/// A property as lists show it.
pub(super) fn info(name: &str, r#type: &str) -> Value {
    json!({"name": name, "type": r#type})
}

pub(super) fn get(of: &impl Tuned, name: &str) -> Result<Value, Error> {
    let class = of.class();
    match class.property(name)?.name {
        "type" => Ok(class.name.into()),
        key => Ok(of.describe()?[key].take()),
    }
}

pub(super) fn set(of: &mut impl Tuned, name: &str, value: &Value) -> Result<(), Error> {
    let class = of.class();
    let property = class.property(name)?;
    if !property.writable {
        return Err(not_writable(class.name, name));
    }
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
    of.change(&json!({ name: value }).to_string())
}

pub(super) fn no_property(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' not found"))
}

pub(super) fn not_writable(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' is not writable"))
}
