//! The result of `query-qmp-schema`: a description of the interface for clients.
//!
//! Each entry is an object with a `meta-type`: a command, an event, or a type by the name that other entries use for it.
//! Arguments of commands are types of their own.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{Definition, Interface, Object, Type};

/// All entries of an interface.
pub(crate) fn describe<C>(interface: &Interface<C>) -> Value {
    let mut schema = Schema::default();
    let empty = schema.name_of_object("empty", &Object::default());
    let mut entries = Vec::new();
    for command in &interface.commands {
        let arguments = match command.arguments == Object::default() {
            true => empty.clone(),
            false => schema.name_of_object(&format!("{}-arg", command.name), &command.arguments),
        };
        let returns = command
            .returns
            .as_ref()
            .map_or(empty.clone(), |r#type| schema.name_of(r#type));
        let mut entry = json!({
            "name": command.name,
            "ret-type": returns,
            "meta-type": "command",
            "arg-type": arguments,
        });
        if command.is_oob() {
            entry["allow-oob"] = true.into();
        }
        entries.push(entry);
    }
    for event in &interface.events {
        let data = schema.name_of_object(&format!("{}-arg", event.name), &event.data);
        entries.push(json!({"name": event.name, "meta-type": "event", "arg-type": data}));
    }
    for (name, definition) in &interface.definitions {
        schema.define(name, definition);
    }
    entries.extend(schema.types.into_values());
    entries.into()
}

/// Entries of types, by name.
#[derive(Default)]
struct Schema {
    types: BTreeMap<String, Value>,
}

impl Schema {
    /// The name of a type. Types without a definition, such as lists, get an entry here.
    fn name_of(&mut self, r#type: &Type) -> String {
        let builtin = |name: &'static str, json_type: &'static str| {
            (
                name.to_owned(),
                json!({"name": name, "meta-type": "builtin", "json-type": json_type}),
            )
        };
        let (name, entry) = match r#type {
            Type::Named(name) => return (*name).to_owned(),
            Type::Str => builtin("str", "string"),
            Type::Int | Type::Unsigned => builtin("int", "int"),
            Type::Bool => builtin("bool", "boolean"),
            Type::Any => builtin("any", "value"),
            Type::List(of) => {
                let of = self.name_of(of);
                let name = format!("[{of}]");
                let entry = json!({"name": name, "meta-type": "array", "element-type": of});
                (name, entry)
            }
        };
        self.types.insert(name.clone(), entry);
        name
    }

    fn name_of_object(&mut self, name: &str, object: &Object) -> String {
        let members: Vec<Value> = object
            .members
            .iter()
            .map(|member| {
                let mut entry = json!({"name": member.name, "type": self.name_of(&member.r#type)});
                if !member.required {
                    entry["default"] = Value::Null;
                }
                entry
            })
            .collect();
        let mut entry = json!({"name": name, "meta-type": "object", "members": members});
        if let Some(variants) = &object.variants {
            let cases = variants.cases.iter();
            let cases: Vec<Value> = cases
                .map(|(case, r#type)| json!({"case": case, "type": r#type}))
                .collect();
            entry["tag"] = variants.tag.into();
            entry["variants"] = cases.into();
        }
        self.types.insert(name.to_owned(), entry);
        name.to_owned()
    }

    fn define(&mut self, name: &str, definition: &Definition) {
        let entry = match definition {
            Definition::Object(object) => {
                self.name_of_object(name, object);
                return;
            }
            Definition::Enum(words) => {
                let members: Vec<Value> = words.iter().map(|word| json!({"name": word})).collect();
                json!({"name": name, "meta-type": "enum", "members": members, "values": words})
            }
            Definition::Alternate(types) => {
                let members: Vec<Value> = types
                    .iter()
                    .map(|r#type| json!({"type": self.name_of(r#type)}))
                    .collect();
                json!({"name": name, "meta-type": "alternate", "members": members})
            }
        };
        self.types.insert(name.to_owned(), entry);
    }
}

/// Panics if a name is used and not defined.
pub(crate) fn check_names<C>(interface: &Interface<C>) {
    fn used<'a>(r#type: &'a Type, found: &mut Vec<&'a str>) {
        match r#type {
            Type::Named(name) => found.push(name),
            Type::List(of) => used(of, found),
            _ => {}
        }
    }
    fn used_by<'a>(object: &'a Object, found: &mut Vec<&'a str>) {
        for member in &object.members {
            used(&member.r#type, found);
        }
        let cases = object.variants.iter().flat_map(|variants| &variants.cases);
        found.extend(cases.map(|(_, name)| *name));
    }
    let mut found = Vec::new();
    for command in &interface.commands {
        used_by(&command.arguments, &mut found);
        if let Some(returns) = &command.returns {
            used(returns, &mut found);
        }
    }
    for event in &interface.events {
        used_by(&event.data, &mut found);
    }
    for definition in interface.definitions.values() {
        match definition {
            Definition::Object(object) => used_by(object, &mut found),
            Definition::Alternate(types) => types.iter().for_each(|t| used(t, &mut found)),
            Definition::Enum(_) => {}
        }
    }
    for name in found {
        assert!(
            interface.definitions.contains_key(name),
            "{name} is not defined"
        );
    }
}
