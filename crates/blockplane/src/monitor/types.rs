//! Types of the options that commands take: made from the tables that the options are read by, so that
//! what the schema says is what is taken.

use options::{Key, live};
use qmp::{Definition, Member, Object, Type, Variants};

/// What options are made of. An enumerated type has the name of its key.
pub(super) fn definitions() -> Vec<(&'static str, Definition)> {
    let mut definitions = vec![
        ("qom-type", Definition::Enum(vec!["iothread"])),
        ("type", Definition::Enum(live::export_types())),
        ("detect-zeroes", Definition::Enum(vec!["off"])),
        (
            "BlockdevRef",
            Definition::Alternate(vec![Type::Named("BlockdevOptions"), Type::Str]),
        ),
        (
            "IothreadRef",
            Definition::Alternate(vec![Type::Str, Type::List(Box::new(Type::Str))]),
        ),
        (
            "CpuSets",
            Definition::Alternate(vec![Type::Str, Type::Int, Type::List(Box::new(Type::Any))]),
        ),
        (
            "IOThreadVirtQueueMapping",
            Definition::Object(Object::of(vec![
                Member::required("iothread", Type::Str),
                Member::optional("vqs", Type::List(Box::new(Type::Int))),
            ])),
        ),
    ];
    let mut reader = Reader::default();
    let object = reader.object(&live::lun_keys(), &["node-name"]);
    definitions.push(("BlockExportLun", Definition::Object(object)));
    let object = reader.object(live::inject_error_keys(), &[]);
    definitions.push(("BlkdebugInjectErrorOptions", Definition::Object(object)));
    let object = reader.object(live::iothread_keys(), &["qom-type", "id"]);
    definitions.push(("ObjectOptions", Definition::Object(object)));
    let object = reader.object(&live::export_keys(), &["type", "id", "addr"]);
    definitions.push(("BlockExportOptions", Definition::Object(object)));

    let drivers = live::drivers();
    let names = drivers.iter().map(|(name, _)| *name).collect();
    definitions.push(("driver", Definition::Enum(names)));
    let mut options = reader.object(live::node_keys(), &["driver"]);
    options.variants = Some(Variants {
        tag: "driver",
        cases: drivers.iter().map(|(name, _)| (*name, *name)).collect(),
    });
    definitions.push(("BlockdevOptions", Definition::Object(options)));
    for (name, keys) in drivers {
        let object = reader.object(keys, &["filename", "file", "image"]);
        definitions.push((name, Definition::Object(object)));
    }
    definitions.extend(reader.definitions);
    definitions
}

/// The object of this name as arguments of a command.
pub(super) fn arguments(name: &str) -> Object {
    let found = definitions().into_iter().find(|(found, _)| *found == name);
    match found {
        Some((_, Definition::Object(object))) => object,
        _ => Object::default(),
    }
}

/// Reads tables of keys.
#[derive(Default)]
struct Reader {
    /// Groups and enumerations found so far.
    definitions: Vec<(&'static str, Definition)>,
}

impl Reader {
    fn object(&mut self, keys: &[Key], required: &[&str]) -> Object {
        let mut members: Vec<Member> = Vec::new();
        for key in keys {
            let (name, r#type) = match key.name.split_once('.') {
                None => (key.name, self.type_of(key)),
                Some((group, _)) => {
                    if members.iter().any(|member| member.name == group) {
                        continue;
                    }
                    self.group(group, keys);
                    (group, Type::Named(group))
                }
            };
            members.push(Member {
                name,
                r#type,
                required: required.contains(&name),
            });
        }
        Object::of(members)
    }

    fn group(&mut self, group: &'static str, keys: &[Key]) {
        let inside: Vec<Key> = keys
            .iter()
            .filter_map(|key| {
                let (found, name) = key.name.split_once('.')?;
                (found == group).then_some(Key { name, ..*key })
            })
            .collect();
        let members = inside
            .iter()
            .map(|key| match key.name {
                // Not that of exports.
                "type" => {
                    self.define(
                        "addr.type",
                        Definition::Enum(key.value.split('|').collect()),
                    );
                    Member::required("type", Type::Named("addr.type"))
                }
                name => Member::optional(name, self.type_of(key)),
            })
            .collect();
        self.define(group, Definition::Object(Object::of(members)));
    }

    /// By its name where that has a type of its own, else by how the help shows its value.
    fn type_of(&mut self, key: &Key) -> Type {
        match (key.name, key.value) {
            ("qom-type" | "type" | "driver" | "detect-zeroes", _) => Type::Named(key.name),
            ("file" | "image", _) => Type::Named("BlockdevRef"),
            ("iothread", _) => Type::Named("IothreadRef"),
            ("iothread-vq-mapping", _) => Type::list_of("IOThreadVirtQueueMapping"),
            ("inject-error", _) => Type::list_of("BlkdebugInjectErrorOptions"),
            ("luns", _) => Type::list_of("BlockExportLun"),
            ("cpu-affinity", _) => Type::Named("CpuSets"),
            (_, "on|off" | "off") => Type::Bool,
            (_, "NAME" | "NODE" | "PATH" | "TEXT" | "FD") => Type::Str,
            (
                _,
                "N" | "NS" | "SIZE" | "BYTES" | "FACTOR" | "DIVISOR" | "PERCENT" | "REQUESTS"
                | "SECONDS",
            ) => Type::Int,
            (name, words) if words.contains('|') => {
                self.define(name, Definition::Enum(words.split('|').collect()));
                Type::Named(name)
            }
            _ => Type::Any,
        }
    }

    fn define(&mut self, name: &'static str, definition: Definition) {
        // Two drivers may share a key.
        if !self.definitions.iter().any(|(found, _)| *found == name) {
            self.definitions.push((name, definition));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_type() {
        for (name, definition) in definitions() {
            if let Definition::Object(object) = definition {
                for member in object.members {
                    assert_ne!(member.r#type, Type::Any, "{name}.{}", member.name);
                }
            }
        }
    }

    #[test]
    fn all_names_are_defined() {
        let _ = crate::monitor::interface();
    }
}
