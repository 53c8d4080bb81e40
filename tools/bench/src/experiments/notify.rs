//! `blockplane-bench notify`: the guest is signalled right behind the last completion, or behind the next
//! submission.

use super::contest::{self, Outcome, Position};
use super::drive::Load;
use super::{ERRORS, Report, Setup, panel};
use crate::error::Result;
use crate::stats::{count, number};
use crate::svg::Figure;
use crate::table::Table;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Numbers of queues, all on one iothread
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub queues: Vec<u8>,
    /// Reads of 4 KiB in flight in each queue
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,8,64,128",
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
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
    let late = setup.needs_patched("late-notify")?;
    let storage = setup.storage()?;
    let positions = [
        ("after the submission", Some(late)),
        ("after the last completion", None),
    ]
    .map(|(name, program)| Position {
        name: name.to_owned(),
        program,
        iothread: String::new(),
    });
    let loads = Load::grid(&options.queues, &[4], &options.depth, false);
    let outcome = contest::positions("notify", setup, &storage, positions, &loads)?;

    let panels = options.queues.iter().enumerate().map(|(index, _)| {
        let per_panel = options.depth.len();
        let rows: Vec<usize> = (index * per_panel..(index + 1) * per_panel).collect();
        let name = rows.first().and_then(|row| loads.get(*row));
        let name = name.map(Load::queues).unwrap_or_default();
        panel(&name, "kIOPS", &outcome, &rows, |cell| cell.iops, 1000.0)
    });
    let figure = Figure {
        title: "When the guest is signalled".to_owned(),
        subtitle: format!(
            "4k random reads on one iothread; {}",
            setup.conditions(&storage)
        ),
        x_label: "reads in flight per queue".to_owned(),
        groups: options
            .depth
            .iter()
            .map(|depth| depth.to_string())
            .collect(),
        panels: panels.collect(),
    };
    Ok(Report {
        tables: vec![
            side_by_side(&outcome),
            by_name(&outcome),
            outcome.costs("What a read cost the server"),
        ],
        json: serde_json::json!({ "notify": outcome.json() }),
        figure,
    })
}

fn side_by_side(outcome: &Outcome) -> Table {
    let mut columns = vec!["IOPS, 4k random read, signalled".to_owned()];
    columns.extend(outcome.variants.iter().cloned());
    columns.push("ratio".to_owned());
    let mut table = Table::new("When the guest is signalled", &columns);
    for (row, load) in outcome.loads.iter().enumerate() {
        let ratio = outcome.ratio(row, 1, 0);
        table.row([
            format!("{}, qd {}", load.queues(), load.depth),
            outcome.iops_text(row, 0, 1.0),
            outcome.iops_text(row, 1, 1.0),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}x")),
        ]);
    }
    let ns = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), count);
    type Distance = fn(&super::counters::Counters) -> Option<u64>;
    let distances: [(&str, Distance); 2] = [
        ("last completion to signal, p50 ns", |counters| {
            counters.signal_p50_ns
        }),
        ("last completion to signal, p99 ns", |counters| {
            counters.signal_p99_ns
        }),
    ];
    let traced = outcome
        .counters
        .iter()
        .any(|counters| counters.signal_p50_ns.is_some());
    for (name, distance) in distances.into_iter().filter(|_| traced) {
        let mut cells = vec![name.to_owned()];
        cells.extend(
            outcome
                .counters
                .iter()
                .map(|counters| ns(distance(counters))),
        );
        table.row(cells);
    }
    table.note(ERRORS);
    if !traced {
        table.note(
            "the distance from the last completion to the signal is traced by a server that was built with \
             --features latency-trace",
        );
    }
    table
}

/// As the field publishes such comparisons: a name, a figure, an error.
fn by_name(outcome: &Outcome) -> Table {
    let columns = ["name", "IOPS", "± error %"].map(str::to_owned);
    let mut table = Table::new("The same, by name", &columns);
    for (row, load) in outcome.loads.iter().enumerate() {
        for (variant, name) in outcome.variants.iter().enumerate() {
            let Some(cell) = outcome.cells.get(row).and_then(|cells| cells.get(variant)) else {
                continue;
            };
            let error = cell.iops.error_percent();
            table.row([
                format!("{}, qd {}, {name}", load.queues(), load.depth),
                number(cell.iops.mean),
                error.map_or_else(|| "-".to_owned(), |error| format!("±{error:.1} %")),
            ]);
        }
    }
    table
}
