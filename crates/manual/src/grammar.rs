//! What `clap` knows of a command, as part of a page.

use clap::{Arg, ArgAction, Command, builder::StyledStr};

use crate::roff::Page;

/// What stands before the examples in helps.
const EXAMPLES: &str = "Examples:";

/// The last word of a command's name.
pub(crate) fn short_name(command: &Command) -> String {
    let name = command.get_name();
    name.rsplit(' ').next().unwrap_or(name).to_owned()
}

/// What it is, in a line.
pub(crate) fn about(command: &Command) -> String {
    text(command.get_about())
}

fn text(styled: Option<&StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default()
}

/// The sections of a command's page, and for each command below it a section of its own.
pub(crate) fn describe(page: &mut Page, command: &Command, path: &str) {
    page.heading("SYNOPSIS");
    usage(page, command, path);
    page.heading("DESCRIPTION");
    page.prose(&text(command.get_long_about().or(command.get_about())));
    let (remarks, examples) = after(command);
    page.prose(&remarks);
    page.heading("OPTIONS");
    options(page, command);
    for below in command.get_subcommands() {
        let path = format!("{path} {}", below.get_name());
        page.heading(&path.to_uppercase());
        usage(page, below, &path);
        page.prose(&text(below.get_long_about().or(below.get_about())));
        options(page, below);
        page.prose(&text(below.get_after_long_help()));
    }
    if !examples.is_empty() {
        page.heading("EXAMPLES");
        page.prose(&examples);
    }
}

fn usage(page: &mut Page, command: &Command, path: &str) {
    let usage = command.clone().bin_name(path).render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    page.verbatim(&usage.lines().map(str::trim).collect::<Vec<_>>().join("\n"));
}

/// Remarks and examples that stand after the options.
fn after(command: &Command) -> (String, String) {
    let remarks = text(command.get_after_help());
    let long = text(command.get_after_long_help());
    match long.split_once(EXAMPLES) {
        // What leads from the short help to the long one is of no use here.
        Some((_, examples)) => (String::new(), examples.trim_start_matches('\n').to_owned()),
        None => (remarks, String::new()),
    }
}

fn options(page: &mut Page, command: &Command) {
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in command.get_arguments() {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        if let Some(heading) = heading {
            page.subheading(heading);
        }
        let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
        for arg in args.filter(|arg| arg.get_help_heading() == heading) {
            page.item(&term(arg), &help(arg));
        }
    }
    page.item("-h, --help", "Print the help: -h in short, --help as here.");
}

/// How an argument is written.
fn term(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    let value = match value.as_str() {
        "" => arg.get_id().as_str().to_uppercase(),
        value => value.to_owned(),
    };
    let mut out: Vec<String> = Vec::new();
    out.extend(arg.get_short().map(|short| format!("-{short}")));
    out.extend(arg.get_long().map(|long| format!("--{long}")));
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    match (out.is_empty(), takes_value) {
        (true, _) => value,
        (false, true) => format!("{} {value}", out.join(", ")),
        (false, false) => out.join(", "),
    }
}

/// What it is for, what it may be, and what it is when it is not there.
fn help(arg: &Arg) -> String {
    let mut out = text(arg.get_long_help().or(arg.get_help()));
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let choices = arg.get_possible_values();
    let choices: Vec<&str> = choices
        .iter()
        .filter(|choice| !choice.is_hide_set())
        .map(|choice| choice.get_name())
        .collect();
    if takes_value && !choices.is_empty() {
        out.push_str(&format!("\n\nOne of {}.", choices.join(", ")));
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if takes_value && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        out.push_str(&format!("\n\nDefault: {}.", defaults.join(", ")));
    }
    out
}
