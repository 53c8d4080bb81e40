//! Names of commands.

use clap::Command;

/// The last word of a command's name: `serve` of `blockplane serve`.
pub(crate) fn short_name(command: &Command) -> String {
    let name = command.get_name();
    name.rsplit(' ').next().unwrap_or(name).to_owned()
}
