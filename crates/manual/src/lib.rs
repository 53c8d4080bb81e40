//! Manual pages and shell completions, made from the definitions of the options, so that they cannot say anything else.
//!
//! What needs no command is in blockplane(1); each command has a page of its own. Who knows the commands hands their
//! grammars in.

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

/// What monitors can be asked and what they tell: a line for each, its name first.
#[derive(Debug)]
pub struct Protocol {
    /// Commands, with their arguments.
    pub commands: Vec<String>,
    /// Events, with what they tell.
    pub events: Vec<String>,
}

/// Writes the pages `blockplane.1`, `blockplane.toml.5`, `blockplane-qmp.7` and `blockplane-COMMAND.1` into a folder.
///
/// # Errors
/// What the operating system says, with the path.
pub fn pages(folder: &Path, commands: &[Command], protocol: &Protocol) -> io::Result<()> {
    write(folder, pages::all(commands, protocol)?)
}

/// Writes `blockplane.bash`, `_blockplane` (zsh) and `blockplane.fish` into a folder.
///
/// # Errors
/// What the operating system says, with the path.
pub fn completions(folder: &Path, commands: &[Command]) -> io::Result<()> {
    write(folder, completions::all(commands))
}

/// Writes the pages of a program that is described by this grammar alone: `NAME.1` and `NAME-COMMAND.1`.
///
/// # Errors
/// What the operating system says, with the path.
pub fn program_pages(folder: &Path, program: &Command) -> io::Result<()> {
    write(
        folder,
        command_pages::with_those_below(program, "blockplane(1)")?,
    )
}

/// Writes `NAME.bash`, `_NAME` (zsh) and `NAME.fish` of such a program.
///
/// # Errors
/// What the operating system says, with the path.
pub fn program_completions(folder: &Path, program: &Command) -> io::Result<()> {
    write(folder, completions::of_program(program))
}

fn write(folder: &Path, files: Vec<(String, String)>) -> io::Result<()> {
    let named = |path: &Path, error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot write {}: {error}", path.display()),
        )
    };
    fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| named(&path, error))?;
    }
    Ok(())
}
