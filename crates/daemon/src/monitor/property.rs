//! QOM properties of objects: list, get and set.
//!
//! Properties are the options of an object, with the same keys and values.

use options::{Key, ValueType};
use qmp::Error;
use serde_json::{Value, json};

/// A QOM class: a type of objects with its properties.
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
pub(super) trait HasProperties {
    fn class(&self) -> Class;

    /// Current values of all options, by key.
    fn describe(&self) -> Result<Value, Error>;

    /// Changes options: an object of keys with their new values.
    fn change(&mut self, json: &str) -> Result<(), Error>;
}

impl Class {
    /// Creates a class with a property for each key. `is_writable` gets its name.
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

    /// `ObjectPropertyInfo` of all properties.
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

/// QOM's name for the type of a property.
fn type_name(r#type: ValueType) -> &'static str {
    match r#type {
        ValueType::Bool => "bool",
        ValueType::Int => "int",
        ValueType::Str | ValueType::Words => "string",
        ValueType::ListOf("BlockExportLun") => "BlockExportLunList",
        ValueType::ListOf(_) | ValueType::Named(_) => "list",
    }
}

/// `ObjectPropertyInfo` of a property.
pub(super) fn info(name: &str, r#type: &str) -> Value {
    json!({"name": name, "type": r#type})
}

pub(super) fn get(of: &impl HasProperties, name: &str) -> Result<Value, Error> {
    let class = of.class();
    match class.property(name)?.name {
        "type" => Ok(class.name.into()),
        key => Ok(of.describe()?[key].take()),
    }
}

pub(super) fn set(of: &mut impl HasProperties, name: &str, value: &Value) -> Result<(), Error> {
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
