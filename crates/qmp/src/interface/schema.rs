//! The result of `query-qmp-schema`: a description of the interface for clients.
//!
//! Each entry is an object with a `meta-type`: a command, an event, or a type by the name that other entries use for it.
//! Arguments of commands are types of their own.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{Interface, ObjectType, Type, TypeDefinition};

/// All entries of an interface.
pub(crate) fn describe_interface<C>(interface: &Interface<C>) -> Value {
    let mut schema = Schema::default();
    let empty_name = schema.add_object("empty", &ObjectType::default());
    let mut entries = Vec::new();
    for command in &interface.commands {
        let arguments = match command.arguments == ObjectType::default() {
            true => empty_name.clone(),
            false => schema.add_object(&format!("{}-arg", command.name), &command.arguments),
        };
        let returns = command
            .returns
            .as_ref()
            .map_or(empty_name.clone(), |r#type| schema.intern_type(r#type));
        let mut entry = json!({
            "name": command.name,
            "ret-type": returns,
            "meta-type": "command",
            "arg-type": arguments,
        });
        if command.allows_oob() {
            entry["allow-oob"] = true.into();
        }
        entries.push(entry);
    }
    for event in &interface.events {
        let data = schema.add_object(&format!("{}-arg", event.name), &event.data);
        entries.push(json!({"name": event.name, "meta-type": "event", "arg-type": data}));
    }
    for (name, definition) in &interface.definitions {
        schema.add_definition(name, definition);
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
    /// Returns the name of a type. Types without a definition, such as lists, get an entry here.
    fn intern_type(&mut self, r#type: &Type) -> String {
        let builtin_entry = |name: &'static str, json_type: &'static str| {
            (
                name.to_owned(),
                json!({"name": name, "meta-type": "builtin", "json-type": json_type}),
            )
        };
        let (name, entry) = match r#type {
            Type::Named(name) => return (*name).to_owned(),
            Type::Str => builtin_entry("str", "string"),
            Type::Int | Type::Unsigned => builtin_entry("int", "int"),
            Type::Bool => builtin_entry("bool", "boolean"),
            Type::Any => builtin_entry("any", "value"),
            Type::List(of) => {
                let of = self.intern_type(of);
                let name = format!("[{of}]");
                let entry = json!({"name": name, "meta-type": "array", "element-type": of});
                (name, entry)
            }
        };
        self.types.insert(name.clone(), entry);
        name
    }

    /// Adds the entry of an object type. Returns its name.
    fn add_object(&mut self, name: &str, object: &ObjectType) -> String {
        let members: Vec<Value> = object
            .members
            .iter()
            .map(|member| {
                let mut entry =
                    json!({"name": member.name, "type": self.intern_type(&member.r#type)});
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

    /// Adds the entry of a named type.
    fn add_definition(&mut self, name: &str, definition: &TypeDefinition) {
        let entry = match definition {
            TypeDefinition::Object(object) => {
                self.add_object(name, object);
                return;
            }
            TypeDefinition::OneWord(word) => {
                return self.add_definition(name, &TypeDefinition::Enum(vec![word]));
            }
            TypeDefinition::Enum(words) => {
                let members: Vec<Value> = words.iter().map(|word| json!({"name": word})).collect();
                json!({"name": name, "meta-type": "enum", "members": members, "values": words})
            }
            TypeDefinition::Alternate(types) => {
                let members: Vec<Value> = types
                    .iter()
                    .map(|r#type| json!({"type": self.intern_type(r#type)}))
                    .collect();
                json!({"name": name, "meta-type": "alternate", "members": members})
            }
        };
        self.types.insert(name.to_owned(), entry);
    }
}

/// Panics if a name is used and not defined.
pub(crate) fn assert_type_names_defined<C>(interface: &Interface<C>) {
    /// Collects the named types that a type uses.
    fn collect_names_of_type<'a>(r#type: &'a Type, names: &mut Vec<&'a str>) {
        match r#type {
            Type::Named(name) => names.push(name),
            Type::List(of) => collect_names_of_type(of, names),
            _ => {}
        }
    }
    /// Collects the named types that members and variants use.
    fn collect_names_of_object<'a>(object: &'a ObjectType, names: &mut Vec<&'a str>) {
        for member in &object.members {
            collect_names_of_type(&member.r#type, names);
        }
        let cases = object.variants.iter().flat_map(|variants| &variants.cases);
        names.extend(cases.map(|(_, name)| *name));
    }
    let mut names = Vec::new();
    for command in &interface.commands {
        collect_names_of_object(&command.arguments, &mut names);
        if let Some(returns) = &command.returns {
            collect_names_of_type(returns, &mut names);
        }
    }
    for event in &interface.events {
        collect_names_of_object(&event.data, &mut names);
    }
    for definition in interface.definitions.values() {
        match definition {
            TypeDefinition::Object(object) => collect_names_of_object(object, &mut names),
            TypeDefinition::Alternate(types) => types
                .iter()
                .for_each(|t| collect_names_of_type(t, &mut names)),
            TypeDefinition::Enum(_) | TypeDefinition::OneWord(_) => {}
        }
    }
    for name in names {
        assert!(
            interface.definitions.contains_key(name),
            "{name} is not defined"
        );
    }
}
