//! QMP schema types of the options of nodes, exports, LUNs and objects. They are generated from the tables with which options are
//! parsed, so that the schema and the parser agree.

use options::{KeySpec, ValueType, qmp_options};
use qmp::{Member, ObjectType, Type, TypeDefinition, Variants};

/// Definitions of all types of options. An enumeration has the name of its key.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let mut definitions = vec![
        (
            "type",
            TypeDefinition::Enum(qmp_options::export_type_names()),
        ),
        (
            "BlockdevRef",
            TypeDefinition::Alternate(vec![Type::Named("BlockdevOptions"), Type::Str]),
        ),
        (
            "IothreadRef",
            TypeDefinition::Alternate(vec![Type::Str, Type::List(Box::new(Type::Str))]),
        ),
        (
            "CpuSets",
            TypeDefinition::Alternate(vec![Type::Str, Type::Int, Type::List(Box::new(Type::Any))]),
        ),
        (
            "IOThreadVirtQueueMapping",
            TypeDefinition::Object(ObjectType::with_members(vec![
                Member::required("iothread", Type::Str),
                Member::optional("vqs", Type::List(Box::new(Type::Int))),
            ])),
        ),
    ];
    let mut builder = OptionSchemaBuilder::default();
    let object = builder.object_type_of_keys_defining_inner_types(&qmp_options::lun_keys());
    definitions.push(("BlockExportLun", TypeDefinition::Object(object)));
    let object = builder.object_type_of_keys_defining_inner_types(qmp_options::inject_error_keys());
    definitions.push(("BlkdebugInjectErrorOptions", TypeDefinition::Object(object)));
    let object = builder.object_type_of_keys_defining_inner_types(qmp_options::rbd_server_keys());
    definitions.push(("InetSocketAddressBase", TypeDefinition::Object(object)));
    definitions.push((
        "RbdAuthMode",
        TypeDefinition::Enum(qmp_options::rbd_auth_modes()),
    ));
    let object = builder.object_type_of_keys_defining_inner_types(qmp_options::authz_rule_keys());
    definitions.push(("QAuthZListRule", TypeDefinition::Object(object)));
    definitions.push((
        "QAuthZListFormat",
        TypeDefinition::Enum(vec!["exact", "glob"]),
    ));
    definitions.extend(object_type_definitions(&mut builder));
    definitions.extend(export_type_definitions(&mut builder));

    let drivers = qmp_options::drivers_with_specific_keys();
    let names = drivers.iter().map(|(name, _)| *name).collect();
    definitions.push(("driver", TypeDefinition::Enum(names)));
    let mut options =
        builder.object_type_of_keys_defining_inner_types(qmp_options::common_node_keys());
    options.variants = Some(Variants {
        tag: "driver",
        cases: drivers.iter().map(|(name, _)| (*name, *name)).collect(),
    });
    definitions.push(("BlockdevOptions", TypeDefinition::Object(options)));
    for (name, keys) in drivers {
        let object = builder.object_type_of_keys_defining_inner_types(keys);
        definitions.push((name, TypeDefinition::Object(object)));
    }
    definitions.extend(builder.definitions);
    definitions
}

/// The options of `object-add`, with a variant for each type of objects.
fn object_type_definitions(
    builder: &mut OptionSchemaBuilder,
) -> Vec<(&'static str, TypeDefinition)> {
    let types = qmp_options::object_types_with_specific_keys();
    let names = types.iter().map(|(name, _)| *name);
    let mut options = ObjectType::with_members(vec![
        Member::required("qom-type", Type::Named("qom-type")),
        Member::required("id", Type::Str),
    ]);
    options.variants = Some(Variants {
        tag: "qom-type",
        cases: names.clone().map(|name| (name, name)).collect(),
    });
    let mut definitions = vec![
        ("qom-type", TypeDefinition::Enum(names.collect())),
        ("ObjectOptions", TypeDefinition::Object(options)),
    ];
    for (name, keys) in types {
        let object = builder.object_type_of_keys_defining_inner_types(&keys);
        definitions.push((name, TypeDefinition::Object(object)));
    }
    definitions
}

/// The options of `block-export-add`, with a variant for each type of exports.
fn export_type_definitions(
    builder: &mut OptionSchemaBuilder,
) -> Vec<(&'static str, TypeDefinition)> {
    let types = qmp_options::export_types();
    let cases = types.iter().map(|r#type| (r#type.name, r#type.schema_name));
    let mut options =
        builder.object_type_of_keys_defining_inner_types(qmp_options::common_export_keys());
    options.variants = Some(Variants {
        tag: "type",
        cases: cases.collect(),
    });
    let mut definitions = vec![("BlockExportOptions", TypeDefinition::Object(options))];
    for r#type in types {
        let object = builder.object_type_of_keys_defining_inner_types(&r#type.specific_keys);
        definitions.push((r#type.schema_name, TypeDefinition::Object(object)));
    }
    definitions
}

/// The members of an object type, to be used as the arguments of a command.
pub(super) fn arguments_from_type(name: &str) -> ObjectType {
    let found = qmp_type_definitions()
        .into_iter()
        .find(|(found, _)| *found == name);
    match found {
        Some((_, TypeDefinition::Object(object))) => object,
        _ => ObjectType::default(),
    }
}

/// Converts tables of keys to schema types.
#[derive(Default)]
struct OptionSchemaBuilder {
    /// Groups and enumerations that were found in the tables.
    definitions: Vec<(&'static str, TypeDefinition)>,
}

impl OptionSchemaBuilder {
    /// The object with a member for each key. Keys `GROUP.NAME` become one member, an object type of its own.
    fn object_type_of_keys_defining_inner_types(&mut self, keys: &[KeySpec]) -> ObjectType {
        let mut members: Vec<Member> = Vec::new();
        for key in keys {
            let Some((group, _)) = key.name.split_once('.') else {
                members.push(self.member_of_key_defining_enum(key.name, key));
                continue;
            };
            if members.iter().any(|member| member.name == group) {
                continue;
            }
            let members_of_group = keys.iter().filter_map(|key| {
                let (found, name) = key.name.split_once('.')?;
                (found == group).then(|| self.member_of_key_defining_enum(name, key))
            });
            let members_of_group: Vec<Member> = members_of_group.collect();
            members.push(Member {
                name: group,
                r#type: Type::Named(group),
                required: members_of_group.iter().any(|member| member.required),
            });
            self.define_if_missing(
                group,
                TypeDefinition::Object(ObjectType::with_members(members_of_group)),
            );
        }
        ObjectType::with_members(members)
    }

    /// The member of this name for a key.
    fn member_of_key_defining_enum(&mut self, name: &'static str, key: &KeySpec) -> Member {
        Member {
            name,
            r#type: self.type_of_key_defining_enum(key),
            required: key.required,
        }
    }

    /// The type of a key's value. Enumerations are defined under the name of the key.
    fn type_of_key_defining_enum(&mut self, key: &KeySpec) -> Type {
        match key.r#type {
            ValueType::Bool => Type::Bool,
            ValueType::Int => Type::Int,
            ValueType::Str => Type::Str,
            ValueType::Named(name) => Type::Named(name),
            ValueType::ListOf(name) => Type::list_of_named(name),
            ValueType::Words => {
                self.define_if_missing(
                    key.name,
                    TypeDefinition::Enum(key.placeholder.split('|').collect()),
                );
                Type::Named(key.name)
            }
        }
    }

    /// Adds a definition unless there is one of this name.
    fn define_if_missing(&mut self, name: &'static str, definition: TypeDefinition) {
        // It may be defined already: drivers share keys.
        if !self.definitions.iter().any(|(found, _)| *found == name) {
            self.definitions.push((name, definition));
        }
    }
}
