//! The QMP interface: collects the commands, events and types of the submodules; names, arguments and results are those of QEMU.

mod bitmap_actions;
mod bitmap_types;
mod bitmaps;
mod blkdebug;
mod chardevs;
mod create;
mod error_conversion;
mod export_properties;
mod exports;
mod histograms;
mod hmp;
mod images;
mod iothread_properties;
mod job_arguments;
mod job_types;
mod jobs;
mod luns;
mod mirror;
mod nbd;
mod node_filenames;
mod node_limits;
mod nodes;
mod objects;
mod option_types;
mod property;
mod qom;
mod reopen;
mod resize;
mod resume;
mod running_object_names;
mod secret_properties;
mod stats;
mod throttle_group_properties;
mod tls_properties;
mod transaction;
mod upgrade;

use qmp::{Command, CommandHandler, Interface, ObjectType, ProgramVersion};
use serde_json::json;

use crate::control::MainThread;

/// The QMP interface: all commands and events, and the types of their arguments and results.
pub(crate) fn qmp_interface() -> Interface<MainThread> {
    let mut commands = vec![quit_command()];
    commands.extend(objects::qmp_commands());
    commands.extend(qom::qmp_commands());
    commands.extend(nodes::qmp_commands());
    commands.extend(bitmaps::qmp_commands());
    commands.extend(transaction::qmp_commands());
    commands.extend(jobs::qmp_commands());
    commands.extend(create::qmp_commands());
    commands.extend(exports::qmp_commands());
    commands.extend(luns::qmp_commands());
    commands.extend(resize::qmp_commands());
    commands.extend(chardevs::qmp_commands());
    commands.extend(hmp::qmp_commands());
    commands.extend(stats::qmp_commands());
    commands.extend(histograms::qmp_commands());
    commands.extend(reopen::qmp_commands());
    commands.extend(resume::qmp_commands());
    commands.extend(blkdebug::qmp_commands());
    commands.extend(nbd::qmp_commands());
    commands.extend(upgrade::qmp_commands());
    let mut definitions = option_types::qmp_type_definitions();
    definitions.extend(objects::qmp_type_definitions());
    definitions.extend(qom::qmp_type_definitions());
    definitions.extend(nodes::qmp_type_definitions());
    definitions.extend(bitmap_types::qmp_type_definitions());
    definitions.extend(job_types::qmp_type_definitions());
    definitions.extend(create::qmp_type_definitions());
    definitions.extend(images::qmp_type_definitions());
    definitions.extend(exports::qmp_type_definitions());
    definitions.extend(chardevs::qmp_type_definitions());
    definitions.extend(resume::qmp_type_definitions());
    definitions.extend(stats::qmp_type_definitions());
    definitions.extend(histograms::qmp_type_definitions());
    definitions.extend(nbd::qmp_type_definitions());
    definitions.extend(upgrade::qmp_type_definitions());
    Interface::new_with_common_commands(
        program_version(),
        definitions,
        commands,
        exports::qmp_events()
            .into_iter()
            .chain(job_types::qmp_events())
            .collect(),
    )
}

/// The name and version for the QMP greeting, where clients find QEMU's.
fn program_version() -> ProgramVersion {
    let part = |text: &str| text.parse().unwrap_or_default();
    ProgramVersion {
        package: concat!("blockplane ", env!("CARGO_PKG_VERSION")).to_owned(),
        version: [
            part(env!("CARGO_PKG_VERSION_MAJOR")),
            part(env!("CARGO_PKG_VERSION_MINOR")),
            part(env!("CARGO_PKG_VERSION_PATCH")),
        ],
    }
}

/// `quit`: ends the daemon.
fn quit_command() -> Command<MainThread> {
    Command {
        name: "quit",
        arguments: ObjectType::default(),
        returns: None,
        run: CommandHandler::InBand(|control, _| {
            tracing::info!("shutting down: a monitor client sent quit");
            control.quit = true;
            Ok(json!({}))
        }),
    }
}

/// A string argument of a command, whose types were checked before; empty if it is missing.
fn str_arg_or_empty<'a>(arguments: &'a qmp::Arguments, name: &str) -> &'a str {
    arguments
        .get(name)
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    /// `UPDATE_EXPECT=1` updates the file.
    #[test]
    fn the_schema_is_as_recorded() {
        let schema = super::qmp_interface().schema();
        let mut entries: Vec<String> = schema
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| format!("{entry}\n"))
            .collect();
        entries.sort();
        expect_file!["schema.jsonl"].assert_eq(&entries.concat());
    }
}
