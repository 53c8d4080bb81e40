//! The name of a command without its program: `serve` of `blockplane serve`.

use clap::Command;

/// The last word of a command's name: `serve` of `blockplane serve`.
pub(crate) fn name_without_program(command: &Command) -> String {
    let name = command.get_name();
    name.rsplit(' ').next().unwrap_or(name).to_owned()
}
