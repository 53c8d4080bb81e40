//! `blockplane info`: what a daemon has, as tables.

mod tables;

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::operator::cli::{Monitor, print};
use crate::operator::client::Client;
use crate::operator::error::{Error, Result};

/// What to show.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: Monitor,
    /// What to show [default: exports nodes iothreads]
    #[arg(value_name = "WHAT", value_enum)]
    pub parts: Vec<Part>,
    /// Print JSON, for scripts: the monitor's own answers, by the names above
    #[arg(long)]
    pub json: bool,
}

/// What there is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Disks for guests: size, queues, who is connected, where
    Exports,
    /// What they are stored on
    Nodes,
    /// Threads that run them, and how they are tuned
    Iothreads,
    /// What each export has done since it was made
    Stats,
}

/// The monitor's answers; `null` where it does not know the question.
#[derive(Debug, Default)]
struct Answers {
    exports: Value,
    nodes: Value,
    iothreads: Value,
    stats: Value,
}

/// Asks and prints.
///
/// # Errors
/// What [`Client`] says.
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let mut client = options.monitor.connect()?;
    let answers = Answers::of(&mut client)?;
    let parts = match options.parts.as_slice() {
        [] => &[Part::Exports, Part::Nodes, Part::Iothreads],
        parts => parts,
    };
    let shown = if options.json {
        let all: Map<String, Value> = parts
            .iter()
            .map(|part| (part.name().to_owned(), answers.part(*part).clone()))
            .collect();
        format!("{:#}", Value::from(all))
    } else {
        let tables: Vec<String> = parts.iter().map(|part| answers.table(*part)).collect();
        tables.join("\n").trim_end().to_owned()
    };
    print(out, &shown)
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

impl Answers {
    fn of(client: &mut Client) -> Result<Self> {
        let mut ask = |command: &str| match client.execute(command, Map::new()) {
            Err(Error::Refused { class, .. }) if class == "CommandNotFound" => Ok(json!(null)),
            answer => answer,
        };
        Ok(Answers {
            exports: ask("query-block-exports")?,
            nodes: ask("query-named-block-nodes")?,
            iothreads: ask("query-iothreads")?,
            stats: ask("query-blockstats")?,
        })
    }

    fn part(&self, part: Part) -> &Value {
        match part {
            Part::Exports => &self.exports,
            Part::Nodes => &self.nodes,
            Part::Iothreads => &self.iothreads,
            Part::Stats => &self.stats,
        }
    }

    fn table(&self, part: Part) -> String {
        if self.part(part).is_null() {
            return format!("This monitor says nothing of {}\n", part.name());
        }
        match part {
            Part::Exports => tables::exports(self),
            Part::Nodes => tables::nodes(self),
            Part::Iothreads => tables::iothreads(self),
            Part::Stats => tables::stats(self),
        }
    }
}
