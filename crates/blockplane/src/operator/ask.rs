//! `blockplane qmp`: commands, and their answers as JSON.

use std::io::{BufRead, IsTerminal, Write};

use serde_json::{Map, Value};

use crate::operator::cli::{Monitor, print};
use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::{schema, words};

/// What to ask.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: Monitor,
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
    /// Spread answers over lines; so they are anyway on a terminal
    #[arg(long)]
    pub pretty: bool,
}

/// Asks and prints.
///
/// # Errors
/// What the daemon answers, and what [`Client`] says.
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let pretty = options.pretty || std::io::stdout().is_terminal();
    let is_script = options.words == ["-"];
    // What cannot be asked is known before anybody is connected to.
    let request = match options.words.as_slice() {
        [] => None,
        _ if is_script => None,
        words => Some(words::request(words)?),
    };
    let mut client = options.monitor.connect()?;
    if let Some(part) = &options.list {
        return list(&mut client, part, out);
    }
    if is_script {
        script(&mut client, std::io::stdin().lock(), pretty, out)?;
    }
    if let Some(request) = request {
        let answer = ask(&mut client, &options.words, request)?;
        print(out, &shown(&answer, pretty))?;
    }
    if !options.events {
        return Ok(());
    }
    loop {
        print(out, &shown(&client.event()?, pretty))?;
    }
}

fn list(client: &mut Client, part: &str, out: &mut impl Write) -> Result<()> {
    let lines = schema::commands(&client.execute("query-qmp-schema", Map::new())?, part);
    if lines.is_empty() {
        let text = format!("no command has '{part}' in its name; --list alone shows all");
        return Err(Error::Words(text));
    }
    print(out, &lines.join("\n"))
}

/// The answer to a request that these words made; an error says how to write what was meant.
fn ask(client: &mut Client, words: &[String], request: Value) -> Result<Value> {
    client.request(request).map_err(|error| match error {
        Error::Refused { class, desc } => {
            let hint = words::hint(words, &desc).map(|hint| format!(": {hint}"));
            let desc = desc + &hint.unwrap_or_default();
            Error::Refused { class, desc }
        }
        error => error,
    })
}

/// Carries out each line. Somebody who types sees an error and goes on.
fn script(
    client: &mut Client,
    lines: impl BufRead,
    pretty: bool,
    out: &mut impl Write,
) -> Result<()> {
    let typed = std::io::stdin().is_terminal();
    for (number, line) in lines.lines().enumerate() {
        let line = line.map_err(Error::io("read standard input"))?;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words = if line.starts_with('{') {
            vec![line.to_owned()]
        } else {
            split(line)
        };
        match words::request(&words).and_then(|request| ask(client, &words, request)) {
            Ok(answer) => print(out, &shown(&answer, pretty))?,
            Err(error @ (Error::Refused { .. } | Error::Words(_))) if typed => {
                print(out, &error.to_string())?
            }
            Err(Error::Refused { class, desc }) => {
                let desc = format!("{desc} (line {}: {line})", number + 1);
                return Err(Error::Refused { class, desc });
            }
            Err(Error::Words(text)) => {
                return Err(Error::Words(format!("line {}: {text}", number + 1)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Words between blanks; single quotes keep blanks and go.
fn split(line: &str) -> Vec<String> {
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

fn shown(value: &Value, pretty: bool) -> String {
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
    fn a_line_is_split_as_a_shell_does_it() {
        assert_eq!(split("a  b=c\td"), ["a", "b=c", "d"]);
        assert_eq!(
            split("x n='a b' '' l='[1, \"2\"]'"),
            ["x", "n=a b", "", "l=[1, \"2\"]"]
        );
    }
}
