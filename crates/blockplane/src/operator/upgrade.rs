//! `blockplane upgrade`: live upgrade of a running daemon to a new version of the program.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::output::print_and_flush;
use crate::operator::units;

/// The command line of `blockplane upgrade`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The socket of the daemon's monitor: path=… of its --chardev
    #[arg(value_name = "SOCKET", value_hint = clap::ValueHint::FilePath)]
    pub socket: PathBuf,
    /// Start this program instead of the daemon's own; only without a sandbox
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::ExecutablePath)]
    pub binary: Option<PathBuf>,
    /// Time limit for the upgrade; 0: no limit
    #[arg(long, value_name = "TIME", default_value = "180s", value_parser = commands::time::parse_duration)]
    pub timeout: Duration,
    /// Print JSON, for scripts: the monitor's own reply
    #[arg(long)]
    pub json: bool,
}

/// Requests the upgrade and prints the outcome.
///
/// # Errors
/// An error reply of the daemon, which then continues, or an error of [`Client`].
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let timeout = (!options.timeout.is_zero()).then_some(options.timeout);
    let mut client = Client::connect(&options.socket, timeout)?;
    let mut arguments = Map::new();
    if let Some(binary) = &options.binary {
        // The daemon may have another working directory.
        let binary = std::path::absolute(binary).unwrap_or_else(|_| binary.clone());
        let binary = binary.to_string_lossy().into_owned();
        arguments.insert("binary".to_owned(), binary.into());
    }
    let upgraded = client.execute("upgrade", arguments)?;
    let text = if options.json {
        format!("{upgraded:#}")
    } else {
        outcome_text(&upgraded)?
    };
    print_and_flush(out, &text)
}

/// The outcome for people.
fn outcome_text(upgraded: &Value) -> Result<String> {
    let number = |member| {
        let command = "upgrade";
        let missing = Error::MissingMember { command, member };
        upgraded[member].as_u64().ok_or(missing)
    };
    let pause = units::format_ns(number("pause-us")?.saturating_mul(1000));
    Ok(format!(
        "upgraded to process {}; queues were paused for {pause}",
        number("pid")?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn summary_shows_the_new_process_and_the_pause() {
        let upgraded = json!({"pid": 12, "pause-us": 1500});
        assert_eq!(
            outcome_text(&upgraded).unwrap(),
            "upgraded to process 12; queues were paused for 1.5 ms"
        );
    }
}
