//! `blockplane-bench batch-limit`: at most so many requests in one submission (`aio-max-batch`).
//!
//! A limit alone cannot be taken off: what an iteration takes from a queue is bounded as well, so that no
//! more than that times the queues ever waits. `pile-up` takes off both, in a program of its own.

use super::contest::{self, Position};
use super::drive::Load;
use super::{ERRORS, Report, Setup, panel};
use crate::error::Result;
use crate::stats::count;
use crate::svg::Figure;
use crate::table::Table;

/// Requests in one submission without a limit worth the name, and taken from one queue at once.
const PILE_UP: u32 = 1024;

/// A limit to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Fixed; 0 is the server's own choice.
    At(u32),
    /// Follows the disk.
    Adaptive,
    /// None, and none on what is taken from a queue at once: all that a guest has asked for goes to the
    /// kernel together.
    PileUp,
}

impl Limit {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        match text {
            "adaptive" => Ok(Limit::Adaptive),
            "pile-up" => Ok(Limit::PileUp),
            number => match number.parse() {
                Ok(limit @ 0..=65_536) => Ok(Limit::At(limit)),
                _ => Err("not 'adaptive', 'pile-up' or a number from 0 to 65536".to_owned()),
            },
        }
    }

    /// For a column.
    fn short(self) -> String {
        match self {
            Limit::At(0) => "own".to_owned(),
            Limit::At(limit) => limit.to_string(),
            Limit::Adaptive => "adaptive".to_owned(),
            Limit::PileUp => "pile-up".to_owned(),
        }
    }

    fn name(self) -> String {
        match self {
            Limit::At(0) => "own choice".to_owned(),
            Limit::At(limit) => format!("limit {limit}"),
            Limit::Adaptive | Limit::PileUp => self.short(),
        }
    }

    /// The patch that the server is built with.
    fn patch(self) -> Option<&'static str> {
        match self {
            Limit::At(_) => None,
            Limit::Adaptive => Some("adaptive-batch"),
            Limit::PileUp => Some("pile-up"),
        }
    }

    fn iothread(self) -> String {
        let limit = match self {
            Limit::At(limit) => limit,
            Limit::Adaptive => 0,
            Limit::PileUp => PILE_UP,
        };
        format!("aio-max-batch={limit}")
    }

    fn position(self, setup: &Setup) -> Result<Position> {
        let program = self.patch().map(|patch| setup.needs_patched(patch));
        Ok(Position {
            name: self.name(),
            program: program.transpose()?,
            iothread: self.iothread(),
        })
    }
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Batch limits; 0 is the server's own choice, 'adaptive' one that follows the disk, 'pile-up' none at all
    /// [default: 1024,8,16,32,64, and the last two where --patched names their programs]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = Limit::parse)]
    pub limit: Vec<Limit>,
    /// Numbers of queues, all on one iothread
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub queues: Vec<u8>,
    /// Bytes of a read, in KiB
    #[arg(
        long,
        value_name = "KIB,…",
        value_delimiter = ',',
        default_value = "4,16",
        value_parser = clap::value_parser!(u32).range(4..=1024)
    )]
    pub block_kib: Vec<u32>,
    /// Reads in flight in each queue
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

impl Options {
    /// Those that were asked for, or all that can be measured.
    fn limits(&self) -> Vec<Limit> {
        if !self.limit.is_empty() {
            return self.limit.clone();
        }
        let numbers = [1024, 8, 16, 32, 64].map(Limit::At);
        let patched = |limit: &Limit| {
            let patch = limit.patch();
            patch.is_some_and(|patch| self.setup.patched(patch).is_some())
        };
        let first = [Limit::PileUp].into_iter().filter(patched);
        let last = [Limit::Adaptive].into_iter().filter(patched);
        first.chain(numbers).chain(last).collect()
    }
}

/// Measures.
///
/// # Errors
/// When a server or the disk fails.
pub fn run(options: &Options) -> Result<Report> {
    let setup = &options.setup;
    let limits = options.limits();
    let positions = limits.iter().map(|limit| limit.position(setup));
    let positions: Vec<Position> = positions.collect::<Result<_>>()?;
    let storage = setup.storage()?;
    let loads = Load::grid(&options.queues, &options.block_kib, &options.depth, false);
    let outcome = contest::positions("batch-limit", setup, &storage, positions, &loads)?;

    let per_queue_count = loads.len() / options.queues.len().max(1);
    // As published: a row for each load, and for each limit a column per number of queues.
    let mut columns = vec!["kIOPS, random read".to_owned()];
    for limit in &limits {
        let limit = limit.short();
        columns.extend(
            options
                .queues
                .iter()
                .map(|queues| format!("{limit}: {queues}q")),
        );
    }
    let mut table = Table::new("A limit on the submission batch", &columns);
    for (row, load) in loads.iter().take(per_queue_count).enumerate() {
        let mut cells = vec![format!("{} qd {}", load.block(), load.depth)];
        for variant in 0..outcome.variants.len() {
            for queues in 0..options.queues.len() {
                cells.push(outcome.iops_text(queues * per_queue_count + row, variant, 1000.0));
            }
        }
        table.row(cells);
    }
    table.note(ERRORS);
    table.note("qd: reads in flight in each queue; all queues are on one iothread");
    for (name, counters) in outcome.variants.iter().zip(&outcome.counters) {
        if let (Some(largest), Some(submitted), Some(calls)) = (
            counters.largest_batch,
            counters.submitted,
            counters.submit_calls,
        ) {
            let at_end = counters.max_batch.map_or_else(String::new, |limit| {
                format!("; at the end the limit was {limit}")
            });
            table.note(format!(
                "{}: the largest batch had {largest}, {} requests in {} calls{at_end}",
                name,
                count(submitted),
                count(calls)
            ));
        }
    }
    let groups = loads
        .iter()
        .take(per_queue_count)
        .map(|load| format!("{} qd {}", load.block(), load.depth));
    let panels = options.queues.iter().enumerate().map(|(index, _)| {
        let first = index * per_queue_count;
        let rows: Vec<usize> = (first..first + per_queue_count).collect();
        let name = loads.get(first).map(Load::queues).unwrap_or_default();
        panel(&name, "kIOPS", &outcome, &rows, |cell| cell.iops, 1000.0)
    });
    let figure = Figure {
        title: "A limit on the submission batch".to_owned(),
        subtitle: format!(
            "Random reads on one iothread; {}",
            setup.conditions(&storage)
        ),
        x_label: "bytes of a read, reads in flight per queue".to_owned(),
        groups: groups.collect(),
        panels: panels.collect(),
    };
    Ok(Report {
        tables: vec![table, outcome.costs("What a read cost the server")],
        json: serde_json::json!({ "batch_limit": outcome.json() }),
        figure,
    })
}
