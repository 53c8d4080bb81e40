//! `blockplane-bench throttle`: limits of throttle groups, as blockplane and qemu-storage-daemon keep them.
//!
//! Every figure is of a server that has just been started, so its buckets are empty.

mod accuracy;
mod limit;
mod shares;
mod spacing;

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Form, Placement};
use crate::comparison_options::ComparisonOptions;
use crate::error::Result;
use crate::load::{Detail, Load, Order, Pattern, Waiting};
use crate::server::{Disk, ThrottleGroup};
use crate::server_programs::{ServerName, ServerProgram};
use crate::storage::{Backing, BackingOption};
use crate::table::Table;
use crate::units;
pub use limit::Limit;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Only one part of it
    #[arg(long, value_enum)]
    pub only: Option<Part>,
    /// Who takes part [default: ours, and qemu-storage-daemon where it is installed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_enum)]
    pub servers: Vec<ServerName>,
    /// Of accuracy: a limit on reads, with its burst; may be repeated
    #[arg(
        long,
        value_name = "LIMIT=N,…",
        default_values = ["iops-total=5000", "bps-total=20971520"]
    )]
    pub limit: Vec<Limit>,
    /// Of accuracy: after how long to count what has passed
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', default_value = "5s", value_parser = units::time)]
    pub after: Vec<Duration>,
    /// Of accuracy: requests in flight
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,8,128",
        value_parser = clap::value_parser!(u16).range(1..=512)
    )]
    pub depth: Vec<u16>,
    /// Of accuracy: bytes of a request
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "4k,64k",
        value_parser = units::block_bytes
    )]
    pub bs: Vec<u32>,
    /// Of accuracy: what is behind the disk: null, file or tmpfs (temporary files there), a file or block device
    #[arg(
        long,
        value_name = "WHAT,…",
        value_delimiter = ',',
        default_value = "null"
    )]
    pub backing: Vec<BackingOption>,
    /// Of spacing and shares: how long each measurement is
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::time)]
    pub time: Duration,
    /// Where things are.
    #[command(flatten)]
    pub place: ComparisonOptions,
}

/// Parts of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// What passes, and what should
    Accuracy,
    /// The time between completions, and processor time
    Spacing,
    /// What members of a group get
    Shares,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    /// One for each part.
    pub tables: Vec<Table>,
    /// For scripts.
    pub json: Value,
}

/// Measures.
///
/// # Errors
/// [`crate::error::Error::Unsuitable`] when a program or a processor is not there; when a request or a server fails.
pub fn run(options: &Options) -> Result<Report> {
    let servers = ServerProgram::find(&options.servers, &options.place)?;
    let mut report = Report {
        tables: Vec::new(),
        json: json!({}),
    };
    let is_wanted = |part| options.only.is_none_or(|only| only == part);
    if is_wanted(Part::Accuracy) {
        let rows = accuracy::measure(options, &servers)?;
        report.tables.push(accuracy::table(&rows, &servers));
        report.json["accuracy"] = accuracy::json(&rows, &servers);
    }
    if is_wanted(Part::Spacing) {
        let rows = spacing::measure(options, &servers)?;
        report.tables.push(spacing::table(&rows));
        report.json["spacing"] = spacing::json(&rows);
    }
    if is_wanted(Part::Shares) {
        let rows = shares::measure(options, &servers)?;
        report.tables.push(shares::table(&rows, &servers));
        report.json["shares"] = shares::json(&rows, &servers);
    }
    report.json = json!({ "throttle": report.json });
    Ok(report)
}

/// A disk that is read from.
fn disk(backing: Backing, throttle_groups: Vec<ThrottleGroup>) -> Disk {
    Disk {
        throttle_groups,
        ..Disk::of_one_queue(&backing, false)
    }
}

/// Random reads.
fn reads(block_bytes: u32, depth: u16, waiting: Waiting, detail: Detail, cpus: &[usize]) -> Load {
    Load {
        pattern: Pattern {
            order: Order::Random,
            read_percent: 100,
        },
        block_bytes,
        depth,
        queues: 1,
        waiting,
        threads: 1,
        cpus: cpus.to_vec(),
        detail,
        span_bytes: 0,
        gives_way: false,
        recorded: false,
        placement: Placement::Packed,
        form: Form::Plain,
    }
}
