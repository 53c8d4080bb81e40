//! The QMP command `blockdev-create`: a job that creates an image.

use block::{NewImage, Preallocation};
use qmp::{
    Arguments, Command, CommandHandler, Error, Member, ObjectType, Type, TypeDefinition, Variants,
};
use serde_json::{Value, json};

use super::error_conversion::error_of_failed_action;
use super::str_arg_or_empty;
use crate::control::MainThread;

/// The hint that QEMU uses by default, in bytes.
const DEFAULT_EXTENT_SIZE_HINT: u64 = 1 << 20;

/// The command.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "blockdev-create",
        arguments: ObjectType::with_members(vec![
            Member::required("job-id", Type::Str),
            Member::required("options", Type::Named("BlockdevCreateOptions")),
        ]),
        returns: None,
        run: CommandHandler::InBand(start),
    }]
}

/// Types of its arguments.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let mut options = ObjectType::with_members(vec![Member::required(
        "driver",
        Type::Named("BlockdevCreateDriver"),
    )]);
    options.variants = Some(Variants {
        tag: "driver",
        cases: vec![("file", "BlockdevCreateOptionsFile")],
    });
    let file = ObjectType::with_members(vec![
        Member::required("filename", Type::Str),
        Member::required("size", Type::Unsigned),
        Member::optional("preallocation", Type::Named("PreallocMode")),
        Member::optional("nocow", Type::Bool),
        Member::optional("extent-size-hint", Type::Unsigned),
    ]);
    vec![
        ("BlockdevCreateOptions", TypeDefinition::Object(options)),
        ("BlockdevCreateDriver", TypeDefinition::OneWord("file")),
        ("BlockdevCreateOptionsFile", TypeDefinition::Object(file)),
        (
            "PreallocMode",
            TypeDefinition::Enum(vec!["off", "metadata", "falloc", "full"]),
        ),
    ]
}

/// Starts the job. Like QEMU's it fails by itself where the options do not fit.
fn start(control: &mut MainThread, arguments: &Arguments) -> Result<Value, Error> {
    let id = str_arg_or_empty(arguments, "job-id");
    let empty = Arguments::new();
    let options = arguments["options"].as_object().unwrap_or(&empty);
    let started = control.start_creating_image(id, read_image(options));
    started.map_err(|failure| error_of_failed_action(&failure))?;
    Ok(json!({}))
}

/// Reads the options of driver `file`. The error is that of the job.
fn read_image(options: &Arguments) -> Result<NewImage, String> {
    let preallocation = match options.get("preallocation").and_then(Value::as_str) {
        Some("falloc") => Preallocation::Falloc,
        Some("full") => Preallocation::Full,
        Some("metadata") => return Err("Unsupported preallocation mode: metadata".to_owned()),
        _ => Preallocation::Off,
    };
    let hint = options.get("extent-size-hint").map(read_unsigned);
    let hint = u32::try_from(hint.unwrap_or(DEFAULT_EXTENT_SIZE_HINT));
    Ok(NewImage {
        path: str_arg_or_empty(options, "filename").into(),
        size: read_unsigned(&options["size"]),
        preallocation,
        nocow: options.get("nocow").and_then(Value::as_bool) == Some(true),
        extent_size_hint: hint.map_err(|_| "Extent size hint is too large")?,
    })
}

/// A number without a sign. A negative one is too large, as for QEMU.
fn read_unsigned(number: &Value) -> u64 {
    number.as_u64().unwrap_or(u64::MAX)
}
