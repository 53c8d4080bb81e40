//! Manual pages and shell completions, generated from the definitions of the options, so that they cannot differ from them.
//!
//! blockplane(1) has the options without a command; each command has a page of its own. The caller passes the grammars of the
//! commands.

mod bash;
mod command_pages;
mod completions;
mod fish;
mod keys;
mod names;
mod page;
mod pages;
mod zsh;

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;

/// Commands and events of monitors, each as a line that begins with its name.
#[derive(Debug)]
pub struct QmpSummary {
    /// Commands, with their arguments.
    pub commands: Vec<String>,
    /// Events, with their data.
    pub events: Vec<String>,
}

/// Writes the pages `blockplane.1`, `blockplane.toml.5`, `blockplane-qmp.7` and `blockplane-COMMAND.1` into a folder.
///
/// # Errors
/// An error of the operating system, with the path.
pub fn write_blockplane_pages(
    folder: &Path,
    commands: &[Command],
    protocol: &QmpSummary,
) -> io::Result<()> {
    write_files(folder, pages::blockplane_pages(commands, protocol)?)
}

/// Writes `blockplane.bash`, `_blockplane` (zsh) and `blockplane.fish` into a folder.
///
/// # Errors
/// An error of the operating system, with the path.
pub fn write_blockplane_completions(folder: &Path, commands: &[Command]) -> io::Result<()> {
    write_files(folder, completions::blockplane_scripts(commands))
}

/// Writes the pages of a program that this grammar describes completely: `NAME.1` and `NAME-COMMAND.1`.
///
/// # Errors
/// An error of the operating system, with the path.
pub fn write_program_pages(folder: &Path, program: &Command) -> io::Result<()> {
    write_files(
        folder,
        command_pages::pages_of_program(program, "blockplane(1)")?,
    )
}

/// Writes `NAME.bash`, `_NAME` (zsh) and `NAME.fish` of such a program.
///
/// # Errors
/// An error of the operating system, with the path.
pub fn write_program_completions(folder: &Path, program: &Command) -> io::Result<()> {
    write_files(folder, completions::program_scripts(program))
}

/// Writes files into a folder, each with its name and text. The folder is created if it does not exist.
fn write_files(folder: &Path, files: Vec<(String, String)>) -> io::Result<()> {
    let with_path = |path: &Path, error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot write {}: {error}", path.display()),
        )
    };
    fs::create_dir_all(folder).map_err(|error| with_path(folder, error))?;
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| with_path(&path, error))?;
    }
    Ok(())
}
