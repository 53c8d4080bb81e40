//! Results of `blockplane-bench backup`: tables and JSON.

use serde_json::{Value, json};

use super::run::{GuestFigures, Run};
use crate::compare::ratio_text;
use crate::load::Load;
use crate::run::{describe, load_json};
use crate::stats::{Summary, number};
use crate::table::Table;

/// One load at one place.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub backing: String,
    pub load: Load,
    /// By server, then by repetition.
    pub runs: Vec<Vec<Run>>,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    pub(super) servers: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
}

/// A figure of the guest: for people, for scripts, how to get it.
type GuestFigure = (&'static str, &'static str, fn(&GuestFigures) -> f64);

const GUEST_FIGURES: [GuestFigure; 3] = [
    ("IOPS", "iops", |guest| guest.iops),
    ("p50 us", "p50_us", |guest| guest.p50_us),
    ("p99 us", "p99_us", |guest| guest.p99_us),
];

/// A figure in which servers are compared: for people, for scripts, how to get it.
type Comparison = (&'static str, &'static str, fn(&Run) -> f64);

const COMPARISONS: [Comparison; 4] = [
    ("IOPS with job", "iops_with", |run| run.with.iops),
    ("p99 with job", "p99_us_with", |run| run.with.p99_us),
    ("job alone", "job_alone", |run| run.alone_s),
    ("job under load", "job_under_load", |run| run.loaded_s),
];

impl Row {
    fn summary(&self, server: usize, value: impl Fn(&Run) -> f64) -> Option<Summary> {
        Summary::of(&self.runs[server].iter().map(value).collect::<Vec<_>>())
    }

    /// Of a figure of the guest: without a job, with one, the second over the first.
    fn guest(
        &self,
        server: usize,
        value: fn(&GuestFigures) -> f64,
    ) -> Option<(Summary, Summary, Summary)> {
        Some((
            self.summary(server, |run| value(&run.without))?,
            self.summary(server, |run| value(&run.with))?,
            self.summary(server, |run| value(&run.with) / value(&run.without))?,
        ))
    }

    /// The first server over another one, in pairs of repetitions.
    fn ratio_of_first(&self, server: usize, value: fn(&Run) -> f64) -> Option<Summary> {
        let pairs = self.runs[0].iter().zip(&self.runs[server]);
        let ratios = pairs.map(|(first, other)| value(first) / value(other));
        Summary::of(&ratios.collect::<Vec<_>>())
    }

    fn name(&self) -> String {
        format!("{}: {}", self.backing, describe(&self.load))
    }
}

/// The median, or nothing.
fn median(summary: Option<Summary>) -> String {
    summary.map_or_else(String::new, |summary| number(summary.median))
}

impl Report {
    /// Tables for people: the servers, and the first one beside the others.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.server_table()];
        if self.servers.len() > 1 {
            tables.push(self.comparison_table());
        }
        tables
    }

    /// A row for each load and server.
    fn server_table(&self) -> Table {
        let mut columns = vec!["load".to_owned(), "server".to_owned()];
        for (name, _, _) in GUEST_FIGURES {
            columns.extend([name.to_owned(), "with job".to_owned(), "ratio".to_owned()]);
        }
        columns.extend(["job alone, s", "under load, s"].map(str::to_owned));
        let mut table = Table::new("A guest without a backup, and with one", &columns);
        for row in &self.rows {
            for (index, server) in self.servers.iter().enumerate() {
                let mut cells = vec![row.name(), (*server).to_owned()];
                for (_, _, value) in GUEST_FIGURES {
                    if let Some((without, with, ratio)) = row.guest(index, value) {
                        cells.extend([
                            number(without.median),
                            number(with.median),
                            ratio_text(&ratio),
                        ]);
                    }
                }
                cells.push(median(row.summary(index, |run| run.alone_s)));
                cells.push(median(row.summary(index, |run| run.loaded_s)));
                table.row(cells);
            }
        }
        table.note("medians; the servers take turns");
        table.note(
            "ratio: with a job over without, in the same repetition: median (lowest-highest)",
        );
        table
    }

    /// A row for each load and server but the first.
    fn comparison_table(&self) -> Table {
        let first = self.servers.first().copied().unwrap_or_default();
        let columns = ["load", "over"].into_iter();
        let columns = columns.chain(COMPARISONS.map(|(name, _, _)| name));
        let columns: Vec<String> = columns.map(str::to_owned).collect();
        let mut table = Table::new(&format!("{first} over the others"), &columns);
        for row in &self.rows {
            for (index, server) in self.servers.iter().enumerate().skip(1) {
                let ratios = COMPARISONS.map(|(_, _, value)| {
                    let ratio = row.ratio_of_first(index, value);
                    ratio.map_or_else(String::new, |ratio| ratio_text(&ratio))
                });
                let names = [row.name(), (*server).to_owned()];
                table.row(names.into_iter().chain(ratios));
            }
        }
        table.note(format!(
            "in pairs of repetitions: median (lowest-highest); above 1 in the column of IOPS, and below 1 in the others, is in \
             favour of {first}"
        ));
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            let figures = (0..self.servers.len()).map(|index| self.figures_json(row, index));
            json!({
                "backing": row.backing,
                "load": load_json(&row.load),
                "figures": figures.collect::<Value>(),
            })
        };
        json!({ "backup": self.rows.iter().map(row).collect::<Value>() })
    }

    /// What one server did.
    fn figures_json(&self, row: &Row, server: usize) -> Value {
        let seconds = |value: fn(&Run) -> f64| {
            let summary = row.summary(server, value);
            summary.map(|summary| summary.json())
        };
        let mut figures = json!({
            "server": self.servers[server],
            "jobs_under_load": row.runs[server].iter().map(|run| run.jobs).sum::<usize>(),
            "job_alone_seconds": seconds(|run| run.alone_s),
            "job_under_load_seconds": seconds(|run| run.loaded_s),
        });
        for (_, key, value) in GUEST_FIGURES {
            figures[key] =
                row.guest(server, value)
                    .map_or(Value::Null, |(without, with, ratio)| {
                        json!({
                            "without": without.json(),
                            "with": with.json(),
                            "ratio": ratio.json(),
                        })
                    });
        }
        for (_, key, value) in COMPARISONS {
            let ratio = row.ratio_of_first(server, value);
            figures["first_over_this"][key] = ratio.map_or(Value::Null, |ratio| ratio.json());
        }
        figures
    }
}
