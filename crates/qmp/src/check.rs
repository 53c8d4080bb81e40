//! Checks the arguments of a QMP command against their declared types, with QEMU's error texts.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{Error, ObjectType, Type, TypeDefinition};

/// The named types of an interface.
pub(crate) type Definitions = BTreeMap<&'static str, TypeDefinition>;

/// Checks all members of an object. `path` is the prefix of their names in errors, with its dot.
pub(crate) fn check_object(
    definitions: &Definitions,
    object: &ObjectType,
    values: &Map<String, Value>,
    path: &str,
) -> Result<(), Error> {
    let mut members: Vec<_> = object.members.iter().collect();
    if let Some(variants) = &object.variants
        && let Some(Value::String(chosen)) = values.get(variants.tag)
        && let Some((_, name)) = variants.cases.iter().find(|(case, _)| case == chosen)
        && let Some(TypeDefinition::Object(case)) = definitions.get(name)
    {
        members.extend(&case.members);
    }
    for member in &members {
        match values.get(member.name) {
            Some(found) => check_value(
                definitions,
                &member.r#type,
                found,
                &format!("{path}{}", member.name),
            )?,
            None if member.required => {
                let text = format!("Parameter '{path}{}' is missing", member.name);
                return Err(Error::generic(text));
            }
            None => {}
        }
    }
    let is_known = |name: &str| members.iter().any(|member| member.name == name);
    match values.keys().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => Err(Error::generic(format!(
            "Parameter '{path}{name}' is unexpected"
        ))),
    }
}

/// Checks a value of this type; `path` is its name in errors.
fn check_value(
    definitions: &Definitions,
    r#type: &Type,
    found: &Value,
    path: &str,
) -> Result<(), Error> {
    let wrong_type = |expected: &str| {
        Err(Error::generic(format!(
            "Invalid parameter type for '{path}', expected: {expected}"
        )))
    };
    match (r#type, found) {
        (Type::Any, _) | (Type::Str, Value::String(_)) | (Type::Bool, Value::Bool(_)) => Ok(()),
        (Type::Int | Type::Unsigned, Value::Number(number)) if !number.is_f64() => Ok(()),
        (Type::List(of), Value::Array(items)) => items
            .iter()
            .enumerate()
            .try_for_each(|(i, item)| check_value(definitions, of, item, &format!("{path}[{i}]"))),
        (Type::Named(name), _) => match definitions.get(name) {
            Some(TypeDefinition::Enum(words)) => match found {
                Value::String(word) if words.contains(&word.as_str()) => Ok(()),
                Value::String(word) => Err(Error::generic(format!(
                    "Parameter '{path}' does not accept value '{word}'"
                ))),
                _ => wrong_type("string"),
            },
            Some(TypeDefinition::OneWord(only)) => match found {
                Value::String(word) if word == only => Ok(()),
                Value::String(word) => Err(Error::generic(format!(
                    "Parameter '{path}' does not accept value '{word}', only '{only}'"
                ))),
                _ => wrong_type("string"),
            },
            Some(TypeDefinition::Object(of)) => match found {
                Value::Object(values) => check_object(definitions, of, values, &format!("{path}.")),
                _ => wrong_type("object"),
            },
            Some(TypeDefinition::Alternate(types)) => {
                match types.iter().find(|t| has_json_type(definitions, t, found)) {
                    Some(chosen) => check_value(definitions, chosen, found, path),
                    None => wrong_type(name),
                }
            }
            None => wrong_type("a type that is defined"),
        },
        (Type::Str, _) => wrong_type("string"),
        (Type::Int, _) => wrong_type("integer"),
        (Type::Unsigned, _) => Err(Error::generic(format!("Parameter '{path}' expects uint64"))),
        (Type::Bool, _) => wrong_type("boolean"),
        (Type::List(_), _) => wrong_type("array"),
    }
}

/// Whether a value has the JSON type of a type; its content is not checked.
fn has_json_type(definitions: &Definitions, r#type: &Type, found: &Value) -> bool {
    match r#type {
        Type::Any => true,
        Type::Str => found.is_string(),
        Type::Int | Type::Unsigned => found.is_number(),
        Type::Bool => found.is_boolean(),
        Type::List(_) => found.is_array(),
        Type::Named(name) => match definitions.get(name) {
            Some(TypeDefinition::Enum(_) | TypeDefinition::OneWord(_)) => found.is_string(),
            Some(TypeDefinition::Object(_)) => found.is_object(),
            Some(TypeDefinition::Alternate(types)) => {
                types.iter().any(|t| has_json_type(definitions, t, found))
            }
            None => false,
        },
    }
}
