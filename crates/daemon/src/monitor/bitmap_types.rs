//! QMP schema types of dirty bitmaps: arguments of the commands for them, actions of `transaction`, and results.

use qmp::{Member, ObjectType, Type, TypeDefinition, Variants};

/// Arguments that name a bitmap.
pub(super) fn members() -> Vec<Member> {
    vec![
        Member::required("node", Type::Str),
        Member::required("name", Type::Str),
    ]
}

/// Arguments that describe a new bitmap.
pub(super) fn add_members() -> Vec<Member> {
    let mut all = members();
    all.push(Member::optional("granularity", Type::Unsigned));
    all.push(Member::optional("persistent", Type::Bool));
    all.push(Member::optional("disabled", Type::Bool));
    all
}

/// Arguments that name a bitmap and those that are merged into it.
pub(super) fn merge_members() -> Vec<Member> {
    vec![
        Member::required("node", Type::Str),
        Member::required("target", Type::Str),
        Member::required("bitmaps", Type::list_of_named("BlockDirtyBitmapOrStr")),
    ]
}

/// Actions of a transaction, with the type of their `data` and the type that contains it.
const ACTIONS: [(&str, &str, &str); 8] = [
    ("abort", "Abort", "AbortWrapper"),
    ("blockdev-backup", "BlockdevBackup", "BlockdevBackupWrapper"),
    (
        "block-dirty-bitmap-add",
        "BlockDirtyBitmapAdd",
        "BlockDirtyBitmapAddWrapper",
    ),
    (
        "block-dirty-bitmap-remove",
        "BlockDirtyBitmap",
        "BlockDirtyBitmapWrapper",
    ),
    (
        "block-dirty-bitmap-clear",
        "BlockDirtyBitmap",
        "BlockDirtyBitmapWrapper",
    ),
    (
        "block-dirty-bitmap-enable",
        "BlockDirtyBitmap",
        "BlockDirtyBitmapWrapper",
    ),
    (
        "block-dirty-bitmap-disable",
        "BlockDirtyBitmap",
        "BlockDirtyBitmapWrapper",
    ),
    (
        "block-dirty-bitmap-merge",
        "BlockDirtyBitmapMerge",
        "BlockDirtyBitmapMergeWrapper",
    ),
];

/// Types of arguments, and of bitmaps in the result of `query-named-block-nodes`.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let object = |members| TypeDefinition::Object(ObjectType::with_members(members));
    let mut info: Vec<Member> = [
        ("name", Type::Str),
        ("recording", Type::Bool),
        ("persistent", Type::Bool),
        ("busy", Type::Bool),
        ("granularity", Type::Int),
        ("count", Type::Int),
    ]
    .map(|(name, r#type)| Member::required(name, r#type))
    .into();
    info.push(Member::optional("inconsistent", Type::Bool));
    let action = ObjectType {
        members: vec![Member::required(
            "type",
            Type::Named("TransactionActionKind"),
        )],
        variants: Some(Variants {
            tag: "type",
            cases: ACTIONS.map(|(name, _, wrapper)| (name, wrapper)).into(),
        }),
    };
    let mut definitions = vec![
        ("BlockDirtyInfo", object(info)),
        ("Abort", object(Vec::new())),
        ("BlockDirtyBitmap", object(members())),
        ("BlockDirtyBitmapAdd", object(add_members())),
        ("BlockDirtyBitmapMerge", object(merge_members())),
        (
            "BlockDirtyBitmapOrStr",
            TypeDefinition::Alternate(vec![Type::Str, Type::Named("BlockDirtyBitmap")]),
        ),
        (
            "TransactionActionKind",
            TypeDefinition::Enum(ACTIONS.map(|(name, ..)| name).into()),
        ),
        ("TransactionAction", TypeDefinition::Object(action)),
        (
            "ActionCompletionMode",
            TypeDefinition::Enum(vec!["individual", "grouped"]),
        ),
        (
            "TransactionProperties",
            object(vec![Member::optional(
                "completion-mode",
                Type::Named("ActionCompletionMode"),
            )]),
        ),
    ];
    for (_, data, wrapper) in ACTIONS {
        if !definitions.iter().any(|(name, _)| *name == wrapper) {
            let data = Member::required("data", Type::Named(data));
            definitions.push((wrapper, object(vec![data])));
        }
    }
    definitions
}
