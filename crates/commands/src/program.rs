//! From words to an exit status, alike for all commands.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind};

/// Helps are so wide on every terminal: the same words always give the same text.
pub const HELP_COLUMNS: usize = 80;

/// Reads `words`, of which the first is the program's own name, and does what they say. What is typed to call it is
/// `name`: `blockplane top`. Errors begin with its words: `blockplane: top: …`.
#[must_use]
pub fn main<C: Parser, E: Display>(
    name: &str,
    words: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(C) -> Result<(), E>,
) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let wrong = match C::try_parse_from(&words) {
        Ok(command) => match run(command) {
            Ok(()) => return ExitCode::SUCCESS,
            // It may name files and quote what others said.
            Err(error) => printable(&error.to_string()),
        },
        Err(error) if !error.use_stderr() => {
            // Whoever pipes the help into `head` has seen enough.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        // Help that was not asked for, where a command is missing.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::FAILURE;
        }
        Err(error) => complaint(&full_name::<C>(name, &words), &error),
    };
    // Nobody may be there to hear it; the exit status says it as well.
    let prefix = name.replace(' ', ": ");
    let _ = writeln!(std::io::stderr(), "{prefix}: {wrong}");
    ExitCode::FAILURE
}

/// The command `name` and the subcommand that `words` call, whose help says what it takes.
fn full_name<C: CommandFactory>(name: &str, words: &[OsString]) -> String {
    let mut full = name.to_owned();
    let mut command = C::command();
    // The first is the program's own name.
    for word in words.iter().skip(1) {
        let Some(below) = command.find_subcommand(word) else {
            break;
        };
        full = format!("{full} {}", below.get_name());
        command = below.clone();
    }
    full
}

/// What is wrong with the words of the command that is called as `name`, to stand behind its name.
#[must_use]
pub fn complaint(name: &str, error: &clap::Error) -> String {
    let text = error.render().to_string();
    // A second "error: " and a bare --help would mislead.
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    let text = text.replace("try '--help'", &format!("try '{name} --help'"));
    // It quotes words as they came.
    printable(&text)
}

/// A text in which a terminal finds nothing to obey: control characters are written out, but for a line's end.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = |char: char| match char {
        char if char.is_control() && char != '\n' => char.escape_default().to_string(),
        char => char.to_string(),
    };
    text.chars().map(shown).collect()
}

/// A file's name as part of a line: its control characters are written out, line ends as well.
#[must_use]
pub fn printable_path(path: &Path) -> String {
    printable(&path.display().to_string()).replace('\n', "\\n")
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
    fn a_complaint_stands_behind_the_names_and_leads_on() {
        let error = Words::try_parse_from(["blockplane top", "--unknown"]).unwrap_err();
        let said = complaint("blockplane top", &error);
        assert!(
            said.starts_with("unexpected argument '--unknown'"),
            "{said}"
        );
        assert!(said.ends_with("try 'blockplane top --help'."), "{said}");
    }

    #[derive(Debug, Parser)]
    enum Commands {
        Run(Words),
    }

    #[test]
    fn a_subcommand_has_a_help_of_its_own() {
        let name = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            full_name::<Commands>("tool", &words)
        };
        assert_eq!(name(&["tool", "run", "--known=x"]), "tool run");
        assert_eq!(name(&["tool", "walk", "run"]), "tool");
        assert_eq!(name(&["tool"]), "tool");
    }

    #[test]
    fn words_in_a_complaint_do_nothing_to_a_terminal() {
        let error = Words::try_parse_from(["blockplane top", "a\t\u{9b}1m"]).unwrap_err();
        let said = complaint("blockplane top", &error);
        assert!(
            said.starts_with("unexpected argument 'a\\t\\u{9b}1m'"),
            "{said}"
        );
        assert!(said.contains('\n'), "{said}");
    }

    #[test]
    fn the_status_says_whether_it_was_done() {
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
