//! QOM properties of objects: list, get and set.
//!
//! Properties are the options of an object, with the same keys and values.

use options::{KeySpec, ValueType};
use qmp::Error;
use serde_json::{Value, json};

/// A QOM class: a type of objects with its properties.
pub(super) struct QomClass {
    pub name: &'static str,
    properties: Vec<QomProperty>,
}

/// A property of a class: its name and type, and whether it can be set.
struct QomProperty {
    name: &'static str,
    r#type: &'static str,
    writable: bool,
}

/// An object with properties.
pub(super) trait HasQomProperties {
    /// The class of the object.
    fn class(&self) -> QomClass;

    /// Current values of all options, by key.
    fn options_to_json(&self) -> Result<Value, Error>;

    /// Changes options; `json` is an object of keys with their new values.
    fn change_options(&mut self, json: &str) -> Result<(), Error>;
}

impl QomClass {
    /// Creates a class with a property for each key. `is_writable` gets its name.
    pub fn new(
        name: &'static str,
        keys: impl Iterator<Item = KeySpec>,
        is_writable: impl Fn(&str) -> bool,
    ) -> Self {
        let r#type = QomProperty {
            name: "type",
            r#type: "string",
            writable: false,
        };
        let properties = keys.map(|key| QomProperty {
            name: key.name,
            r#type: qom_type_of_property(key.r#type),
            writable: is_writable(key.name),
        });
        let properties = std::iter::once(r#type).chain(properties).collect();
        QomClass { name, properties }
    }

    /// `ObjectPropertyInfo` of all properties.
    pub fn property_infos(&self) -> Value {
        let all = self.properties.iter();
        all.map(|property| property_info(property.name, property.r#type))
            .collect()
    }

    /// The property of this name, or an error if the class has none.
    fn find_property(&self, name: &str) -> Result<&QomProperty, Error> {
        let found = self
            .properties
            .iter()
            .find(|property| property.name == name);
        found.ok_or_else(|| property_not_found_error(self.name, name))
    }
}

/// QOM's name for the type of a property.
fn qom_type_of_property(r#type: ValueType) -> &'static str {
    match r#type {
        ValueType::Bool => "bool",
        ValueType::Int => "int",
        ValueType::Str | ValueType::Words => "string",
        ValueType::ListOf("BlockExportLun") => "BlockExportLunList",
        ValueType::Named("ThrottleLimits") => "ThrottleLimits",
        ValueType::ListOf(_) | ValueType::Named(_) => "list",
    }
}

/// `ObjectPropertyInfo` of a property.
pub(super) fn property_info(name: &str, r#type: &str) -> Value {
    json!({"name": name, "type": r#type})
}

/// The value of an object's property.
pub(super) fn get_property_value(
    object: &impl HasQomProperties,
    name: &str,
) -> Result<Value, Error> {
    let class = object.class();
    let property = class.find_property(name)?;
    if property.name == "type" {
        return Ok(class.name.into());
    }
    let value = object.options_to_json()?[property.name].take();
    Ok(match (value, property.r#type) {
        // An option that is not set: empty, as in QEMU.
        (Value::Null, "string") => json!(""),
        (Value::Null, "list" | "BlockExportLunList") => json!([]),
        (value, _) => value,
    })
}

/// Changes an object's property, after checking that it may be changed and the type of the value.
pub(super) fn set_property_value(
    object: &mut impl HasQomProperties,
    name: &str,
    value: &Value,
) -> Result<(), Error> {
    let class = object.class();
    let property = class.find_property(name)?;
    if !property.writable {
        return Err(property_not_writable_error(class.name, name));
    }
    let expected_type = match property.r#type {
        "int" if !(value.is_i64() || value.is_u64()) => Some("integer"),
        "bool" if !value.is_boolean() => Some("boolean"),
        "ThrottleLimits" if !value.is_object() => Some("object"),
        _ => None,
    };
    if let Some(expected) = expected_type {
        return Err(Error::generic(format!(
            "Invalid parameter type for '{name}', expected: {expected}"
        )));
    }
    object.change_options(&json!({ name: value }).to_string())
}

/// The error for a property that a class does not have.
pub(super) fn property_not_found_error(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' not found"))
}

/// The error for a property that cannot be changed.
pub(super) fn property_not_writable_error(r#type: &str, name: &str) -> Error {
    Error::generic(format!("Property '{type}.{name}' is not writable"))
}
