//! `blockplane qmp`: sends QMP commands and prints the replies as JSON.

use std::io::{BufRead, IsTerminal, Write};

use serde_json::{Map, Value};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::monitor_args::MonitorArgs;
use crate::operator::output::print_and_flush;
use crate::operator::{request, schema};

/// The command line of `blockplane qmp`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// A command and its arguments, a request in JSON, or - to read them from standard input, one a line
    #[arg(
        value_name = "COMMAND",
        required_unless_present_any = ["list", "events"],
        allow_hyphen_values = false
    )]
    pub words: Vec<String>,
    /// Show the commands whose names contain PART, with the arguments they take; optional ones in brackets
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["words", "events"])]
    pub list: Option<String>,
    /// Print events, one a line, until the daemon ends or Ctrl-C; after COMMAND, if there is one
    #[arg(long)]
    pub events: bool,
    /// Indent the replies, which is the default on a terminal
    #[arg(long)]
    pub pretty: bool,
}

/// Sends the commands and prints the replies.
///
/// # Errors
/// An error reply of the daemon, or an error of [`Client`].
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let pretty = options.pretty || std::io::stdout().is_terminal();
    let is_script = options.words == ["-"];
    // An invalid request is reported before connecting.
    let request = match options.words.as_slice() {
        [] => None,
        _ if is_script => None,
        words => Some(request::parse_request(words)?),
    };
    let mut client = options.monitor.connect()?;
    if let Some(part) = &options.list {
        return print_commands(&mut client, part, out);
    }
    if is_script {
        run_script(&mut client, std::io::stdin().lock(), pretty, out)?;
    }
    if let Some(request) = request {
        let reply = send_request_with_argument_hint(&mut client, &options.words, request)?;
        print_and_flush(out, &format_json(&reply, pretty))?;
    }
    if !options.events {
        return Ok(());
    }
    loop {
        print_and_flush(out, &format_json(&client.next_event()?, pretty))?;
    }
}

/// Prints the commands whose names contain `part`, for `--list`.
fn print_commands(client: &mut Client, part: &str, out: &mut impl Write) -> Result<()> {
    let lines = schema::command_lines(&client.execute("query-qmp-schema", Map::new())?, part);
    if lines.is_empty() {
        let text = format!("no command's name contains '{part}'; --list alone shows all");
        return Err(Error::InvalidRequest(text));
    }
    print_and_flush(out, &lines.join("\n"))
}

/// Sends a request that was made from `words`. An error gets a hint on how to write the argument.
fn send_request_with_argument_hint(
    client: &mut Client,
    words: &[String],
    request: Value,
) -> Result<Value> {
    client
        .execute_request(request)
        .map_err(|error| match error {
            Error::Command { class, desc } => {
                let hint =
                    request::string_argument_hint(words, &desc).map(|hint| format!(": {hint}"));
                let desc = desc + &hint.unwrap_or_default();
                Error::Command { class, desc }
            }
            error => error,
        })
}

/// Executes each line of the input. An error ends a script; an interactive user sees it and goes on.
fn run_script(
    client: &mut Client,
    lines: impl BufRead,
    pretty: bool,
    out: &mut impl Write,
) -> Result<()> {
    let is_interactive = std::io::stdin().is_terminal();
    for (number, line) in lines.lines().enumerate() {
        let line = line.map_err(Error::io("read standard input"))?;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words = if line.starts_with('{') {
            vec![line.to_owned()]
        } else {
            split_words(line)
        };
        match request::parse_request(&words)
            .and_then(|request| send_request_with_argument_hint(client, &words, request))
        {
            Ok(reply) => print_and_flush(out, &format_json(&reply, pretty))?,
            Err(error @ (Error::Command { .. } | Error::InvalidRequest(_))) if is_interactive => {
                print_and_flush(out, &error.to_string())?
            }
            Err(Error::Command { class, desc }) => {
                let desc = format!("{desc} (line {}: {line})", number + 1);
                return Err(Error::Command { class, desc });
            }
            Err(Error::InvalidRequest(text)) => {
                return Err(Error::InvalidRequest(format!(
                    "line {}: {text}",
                    number + 1
                )));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Splits a line at blanks; single quotes keep blanks and are removed.
fn split_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            blank if blank.is_whitespace() && !quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// JSON on one line, or indented.
fn format_json(value: &Value, pretty: bool) -> String {
    if pretty {
        format!("{value:#}")
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_line_is_split_at_blanks_outside_quotes() {
        assert_eq!(split_words("a  b=c\td"), ["a", "b=c", "d"]);
        assert_eq!(
            split_words("x n='a b' '' l='[1, \"2\"]'"),
            ["x", "n=a b", "", "l=[1, \"2\"]"]
        );
    }
}
