//! The `main` function of a command: parses its arguments, runs it, prints errors and returns the exit status; and text
//! that is safe to print on a terminal.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind};

/// Width of help texts. It does not depend on the terminal, so that the same arguments always print the same text.
pub const HELP_COLUMNS: usize = 80;

/// Parses `args`, of which the first is the program's own name, and runs the command. `name` is how the command is called,
/// such as `blockplane top`; errors begin with it: `blockplane: top: …`.
#[must_use]
pub fn main<C: Parser, E: Display>(
    name: &str,
    args: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(C) -> Result<(), E>,
) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let message = match C::try_parse_from(&args) {
        Ok(command) => match run(command) {
            Ok(()) => return ExitCode::SUCCESS,
            // It may contain names of files and texts of other programs.
            Err(error) => printable(&error.to_string()),
        },
        Err(error) if !error.use_stderr() => {
            // Fails when the output is piped into `head`, for example; that is no error.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        // The help is printed because a subcommand is missing.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::FAILURE;
        }
        Err(error) => usage_error_text(&command_name_with_subcommands::<C>(name, &args), &error),
    };
    // Standard error may be closed; the exit status shows the error as well.
    let prefix = name.replace(' ', ": ");
    let _ = writeln!(std::io::stderr(), "{prefix}: {message}");
    ExitCode::FAILURE
}

/// The program, the first word of `name`, with the subcommands that `args` select, for a hint at its help.
fn command_name_with_subcommands<C: CommandFactory>(name: &str, args: &[OsString]) -> String {
    let mut full = name.split(' ').next().unwrap_or_default().to_owned();
    let mut command = C::command();
    // The first is the program's own name.
    for arg in args.iter().skip(1) {
        let Some(subcommand) = command.find_subcommand(arg) else {
            break;
        };
        full = format!("{full} {}", subcommand.get_name());
        command = subcommand.clone();
    }
    full
}

/// The text of an error in the arguments of the command that is called as `name`, to be printed after its name.
#[must_use]
pub fn usage_error_text(name: &str, error: &clap::Error) -> String {
    let text = error.render().to_string();
    // The caller prints a prefix instead of "error: ", and --help belongs to this command.
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    let text = text.replace("try '--help'", &format!("try '{name} --help'"));
    // It contains arguments unchanged.
    printable(&text)
}

/// Escapes the characters that [`must_be_escaped`], except the newline.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = |char: char| match must_be_escaped(char) && char != '\n' {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Whether a character must be escaped where text is shown: control characters, separators of lines and paragraphs, and explicit changes
/// of direction (Unicode Standard Annex #9). They could forge a line, control a terminal, or reorder what is shown.
#[must_use]
pub fn must_be_escaped(char: char) -> bool {
    let begins_line = matches!(char, '\u{2028}' | '\u{2029}');
    let changes_direction = matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || begins_line || changes_direction
}

/// Escapes the characters that [`must_be_escaped`], newlines included: for a text within a line.
#[must_use]
pub fn printable_in_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// A path to be printed within a line, as [`printable_in_line`] has it.
#[must_use]
pub fn printable_path(path: &Path) -> String {
    printable_in_line(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Words {
        #[arg(long)]
        _known: bool,
    }

    #[test]
    fn a_usage_error_names_the_help_of_the_command_and_escapes_control_characters() {
        for (word, shown) in [("--unknown", "--unknown"), ("a\t\u{9b}1m", "a\\t\\u{9b}1m")] {
            let error = Words::try_parse_from(["blockplane top", word]).unwrap_err();
            let text = usage_error_text("blockplane top", &error);
            let first = format!("unexpected argument '{shown}'");
            assert!(text.starts_with(&first), "{text}");
            assert!(text.ends_with("try 'blockplane top --help'."), "{text}");
        }
    }

    #[derive(Debug, Parser)]
    enum Commands {
        Run(Words),
    }

    #[test]
    fn the_full_name_has_the_subcommands_that_are_called() {
        let name = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            command_name_with_subcommands::<Commands>("tool", &words)
        };
        assert_eq!(name(&["tool", "run", "--known=x"]), "tool run");
        assert_eq!(name(&["tool", "walk", "run"]), "tool");
        assert_eq!(name(&["tool"]), "tool");
    }

    #[test]
    fn the_exit_status_is_that_of_the_command() {
        let status = |word: &str, done: Result<(), &str>| {
            let words = ["blockplane top", word].map(OsString::from);
            main("top", words, |_: Words| done.map_err(str::to_owned))
        };
        assert_eq!(status("--help", Err("not run")), ExitCode::SUCCESS);
        assert_eq!(status("--known", Ok(())), ExitCode::SUCCESS);
        assert_eq!(status("--known", Err("broken")), ExitCode::FAILURE);
        assert_eq!(status("--unknown", Ok(())), ExitCode::FAILURE);
    }
}
