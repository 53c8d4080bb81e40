//! Generates the manual page of each command from its `clap` grammar, with `clap_mangen`.

use std::io;

use clap::{Command, builder::StyledStr};
use clap_mangen::Man;

use crate::page::{MANUAL, Page, SOURCE, adapt_for_terminals, release_date};

/// The heading of the examples in help texts.
const EXAMPLES_HEADING: &str = "Examples:\n";

/// The page of a program or command, and those of its subcommands, each with the name of its file.
pub(crate) fn pages_of_program(
    program: &Command,
    see_also: &str,
) -> io::Result<Vec<(String, String)>> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let mut pages = vec![page_of_command(&program, see_also)?];
    for command in program.get_subcommands() {
        pages.push(page_of_command(command, see_also)?);
    }
    Ok(pages)
}

/// The page of a command, with the name of its file. The grammar is built, see [`Command::build`].
fn page_of_command(command: &Command, see_also: &str) -> io::Result<(String, String)> {
    let after = text_without_styles(command.get_after_long_help().or(command.get_after_help()));
    let (remarks, examples) = after.split_once(EXAMPLES_HEADING).unwrap_or((&after, ""));
    let about = text_without_styles(command.get_long_about().or(command.get_about()));
    let usage = command.clone().render_usage().to_string();
    // clap_mangen would put remarks and examples into one paragraph under the heading EXTRA, and options without their
    // values into the synopsis.
    let command = command
        .clone()
        .long_about(format!("{about}\n\n{remarks}").trim().to_owned())
        .after_help(None)
        .after_long_help(None)
        .override_usage(usage.trim_start_matches("Usage:").trim().to_owned());
    let man = Man::new(command)
        .source(SOURCE)
        .date(release_date())
        .manual(MANUAL);
    let mut out = Vec::new();
    man.render(&mut out)?;
    let mut last_part = Page::default();
    if !examples.is_empty() {
        last_part.add_heading("EXAMPLES");
        last_part.add_verbatim(examples);
    }
    last_part.add_heading("SEE ALSO");
    last_part.add_prose(see_also);
    let first_part = adapt_for_terminals(&String::from_utf8_lossy(&out));
    Ok((man.get_filename(), first_part + &last_part.finish()))
}

/// A help text without its styles; empty if there is none.
fn text_without_styles(styled: Option<&StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default()
}
