//! `blockplane-bench completion-ring`: completions read in user space, against io_getevents(2).

use super::contest::{self, Outcome, Position};
use super::drive::Load;
use super::{ERRORS, Report, Setup, panel};
use crate::error::Result;
use crate::svg::Figure;
use crate::table::Table;

const MB: f64 = 1e6;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Queues, all on one iothread
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub queues: u8,
    /// Bytes of a request, in KiB
    #[arg(
        long,
        value_name = "KIB,…",
        value_delimiter = ',',
        default_value = "4,64",
        value_parser = clap::value_parser!(u32).range(4..=1024)
    )]
    pub block_kib: Vec<u32>,
    /// Requests in flight in each queue
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: Vec<u16>,
    /// Where and how long.
    #[command(flatten)]
    pub setup: Setup,
}

/// Measures.
///
/// # Errors
/// When a server or the disk fails.
pub fn run(options: &Options) -> Result<Report> {
    let setup = &options.setup;
    let syscall = setup.needs_patched("completion-syscall")?;
    let storage = setup.storage()?;
    let names = ["io_getevents", "ring in user space"];
    // A given device is not written.
    let kinds = if setup.device.is_some() { 1 } else { 2 };
    let mut parts: Vec<(&str, Outcome)> = Vec::new();
    for (kind, write) in [("read", false), ("write", true)].into_iter().take(kinds) {
        let programs = [Some(syscall.clone()), None];
        let positions = names
            .into_iter()
            .zip(programs)
            .map(|(name, program)| Position {
                name: name.to_owned(),
                program,
                iothread: String::new(),
            });
        let title = format!("completion-ring, {kind}s");
        let loads = Load::grid(&[options.queues], &options.block_kib, &options.depth, write);
        let outcome = contest::positions(&title, setup, &storage, positions, &loads)?;
        parts.push((kind, outcome));
    }

    let columns = ["random", names[0], names[1], "ratio"].map(str::to_owned);
    let mut table = Table::new("Completions read in user space, MB/s", &columns);
    for (kind, outcome) in &parts {
        for (row, load) in outcome.loads.iter().enumerate() {
            let unit = MB / f64::from(load.block_bytes);
            table.row([
                load.to_string(),
                outcome.iops_text(row, 0, unit),
                outcome.iops_text(row, 1, unit),
                outcome
                    .ratio(row, 1, 0)
                    .map_or_else(String::new, |ratio| format!("{ratio:.3}x")),
            ]);
        }
        for (what, value) in [
            (
                "io_submit calls per",
                (|counters| ratio(counters.submit_calls?, counters.submitted?)) as Count,
            ),
            ("io_getevents calls per", |counters| {
                ratio(counters.getevents_calls?, counters.submitted?)
            }),
        ] {
            let mut cells = vec![format!("{what} {kind}")];
            cells.extend(outcome.counters.iter().map(|counters| {
                value(counters).map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
            }));
            table.row(cells);
        }
    }
    table.note(ERRORS);
    table.note("MB: 1,000,000 bytes; calls: over the whole life of the server, warm-up included");
    let costs: Vec<Table> = parts
        .iter()
        .map(|(kind, outcome)| outcome.costs(&format!("What a {kind} cost the server")))
        .collect();
    let panels = parts.iter().flat_map(|(kind, outcome)| {
        let sizes = options.block_kib.iter().enumerate();
        sizes.map(move |(index, kib)| {
            let per_size = options.depth.len();
            let rows: Vec<usize> = (index * per_size..(index + 1) * per_size).collect();
            let unit = MB / (f64::from(*kib) * 1024.0);
            panel(
                &format!("{kib}k {kind}"),
                "MB/s",
                outcome,
                &rows,
                |cell| cell.iops,
                unit,
            )
        })
    });
    let queues = parts.first().and_then(|(_, outcome)| outcome.loads.first());
    let figure = Figure {
        title: "Completions read in user space".to_owned(),
        subtitle: format!(
            "Random requests, {} on one iothread; {}",
            queues.map(Load::queues).unwrap_or_default(),
            setup.conditions(&storage)
        ),
        x_label: "requests in flight per queue".to_owned(),
        groups: options
            .depth
            .iter()
            .map(|depth| depth.to_string())
            .collect(),
        panels: panels.collect(),
    };
    let json: serde_json::Map<_, _> = parts
        .iter()
        .map(|(kind, outcome)| ((*kind).to_owned(), outcome.json()))
        .collect();
    Ok(Report {
        tables: std::iter::once(table).chain(costs).collect(),
        json: serde_json::json!({ "completion_ring": json }),
        figure,
    })
}

type Count = fn(&super::counters::Counters) -> Option<f64>;

fn ratio(calls: u64, requests: u64) -> Option<f64> {
    (requests > 0).then(|| calls as f64 / requests as f64)
}
