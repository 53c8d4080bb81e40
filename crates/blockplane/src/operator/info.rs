//! `blockplane info`: exports, nodes, iothreads and statistics of a daemon, as tables.

mod tables;

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::monitor_args::MonitorArgs;
use crate::operator::output::print_and_flush;

/// The command line of `blockplane info`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// Tables to show [default: exports nodes iothreads]
    #[arg(value_name = "WHAT", value_enum)]
    pub kinds: Vec<TableKind>,
    /// Print JSON, for scripts: the monitor's own replies, by the names above
    #[arg(long)]
    pub json: bool,
}

/// A table of `blockplane info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TableKind {
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
struct InfoReplies {
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
    let replies = InfoReplies::query_all(&mut client)?;
    let kinds = match options.kinds.as_slice() {
        [] => &[TableKind::Exports, TableKind::Nodes, TableKind::Iothreads],
        kinds => kinds,
    };
    let text = if options.json {
        let all: Map<String, Value> = kinds
            .iter()
            .map(|kind| (kind.name().to_owned(), replies.reply_of(*kind).clone()))
            .collect();
        format!("{:#}", Value::from(all))
    } else {
        let tables: Vec<String> = kinds
            .iter()
            .map(|kind| replies.format_table(*kind))
            .collect();
        tables.join("\n").trim_end().to_owned()
    };
    print_and_flush(out, &text)
}

impl TableKind {
    /// The name of the table on the command line and in JSON.
    fn name(self) -> &'static str {
        match self {
            TableKind::Exports => "exports",
            TableKind::Nodes => "nodes",
            TableKind::Iothreads => "iothreads",
            TableKind::Stats => "stats",
        }
    }
}

impl InfoReplies {
    /// Queries a monitor for all that the tables show.
    fn query_all(client: &mut Client) -> Result<Self> {
        let mut query = |command: &str| match client.execute(command, Map::new()) {
            Err(Error::Command { class, .. }) if class == "CommandNotFound" => Ok(json!(null)),
            reply => reply,
        };
        Ok(InfoReplies {
            exports: query("query-block-exports")?,
            nodes: query("query-named-block-nodes")?,
            iothreads: query("query-iothreads")?,
            stats: query("query-blockstats")?,
        })
    }

    /// The reply that a table shows.
    fn reply_of(&self, kind: TableKind) -> &Value {
        match kind {
            TableKind::Exports => &self.exports,
            TableKind::Nodes => &self.nodes,
            TableKind::Iothreads => &self.iothreads,
            TableKind::Stats => &self.stats,
        }
    }

    /// A table as text.
    fn format_table(&self, kind: TableKind) -> String {
        if self.reply_of(kind).is_null() {
            return format!("This monitor does not report {}\n", kind.name());
        }
        match kind {
            TableKind::Exports => tables::exports_table(self),
            TableKind::Nodes => tables::nodes_table(self),
            TableKind::Iothreads => tables::iothreads_table(self),
            TableKind::Stats => tables::export_stats_table(self),
        }
    }
}
