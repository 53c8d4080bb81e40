//! `blockplane info`: exports, nodes, iothreads and statistics of a daemon, as tables.

mod tables;

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::operator::cli::{Monitor, print};
use crate::operator::client::Client;
use crate::operator::error::{Error, Result};

/// The command line of `blockplane info`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: Monitor,
    /// Tables to show [default: exports nodes iothreads]
    #[arg(value_name = "WHAT", value_enum)]
    pub parts: Vec<Part>,
    /// Print JSON, for scripts: the monitor's own replies, by the names above
    #[arg(long)]
    pub json: bool,
}

/// A table of `blockplane info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Disks for guests: size, queues, front-end, socket
    Exports,
    /// Block nodes that store them
    Nodes,
    /// Threads that run the queues, and their settings
    Iothreads,
    /// Counters of each export since it was created
    Stats,
}

/// The monitor's replies; `null` for a command that it does not have.
#[derive(Debug, Default)]
struct Replies {
    exports: Value,
    nodes: Value,
    iothreads: Value,
    stats: Value,
}

/// Queries the monitor and prints the tables.
///
/// # Errors
/// An error of [`Client`].
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let mut client = options.monitor.connect()?;
    let replies = Replies::query(&mut client)?;
    let parts = match options.parts.as_slice() {
        [] => &[Part::Exports, Part::Nodes, Part::Iothreads],
        parts => parts,
    };
    let text = if options.json {
        let all: Map<String, Value> = parts
            .iter()
            .map(|part| (part.name().to_owned(), replies.reply_of(*part).clone()))
            .collect();
        format!("{:#}", Value::from(all))
    } else {
        let tables: Vec<String> = parts
            .iter()
            .map(|part| replies.format_table(*part))
            .collect();
        tables.join("\n").trim_end().to_owned()
    };
    print(out, &text)
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Exports => "exports",
            Part::Nodes => "nodes",
            Part::Iothreads => "iothreads",
            Part::Stats => "stats",
        }
    }
}

impl Replies {
    /// Queries a monitor.
    fn query(client: &mut Client) -> Result<Self> {
        let mut query = |command: &str| match client.execute(command, Map::new()) {
            Err(Error::Command { class, .. }) if class == "CommandNotFound" => Ok(json!(null)),
            reply => reply,
        };
        Ok(Replies {
            exports: query("query-block-exports")?,
            nodes: query("query-named-block-nodes")?,
            iothreads: query("query-iothreads")?,
            stats: query("query-blockstats")?,
        })
    }

    /// The reply that a table shows.
    fn reply_of(&self, part: Part) -> &Value {
        match part {
            Part::Exports => &self.exports,
            Part::Nodes => &self.nodes,
            Part::Iothreads => &self.iothreads,
            Part::Stats => &self.stats,
        }
    }

    /// A table as text.
    fn format_table(&self, part: Part) -> String {
        if self.reply_of(part).is_null() {
            return format!("This monitor does not report {}\n", part.name());
        }
        match part {
            Part::Exports => tables::exports(self),
            Part::Nodes => tables::nodes(self),
            Part::Iothreads => tables::iothreads(self),
            Part::Stats => tables::stats(self),
        }
    }
}
