//! Results of a comparison, as tables and as JSON.

use serde_json::{Map, Value, json};

use crate::load::{Load, Measured, Times};
use crate::run::{Figure, describe, load_json};
use crate::stats::{Summary, number};
use crate::table::Table;

/// One load on all contenders.
#[derive(Clone, Debug)]
pub struct Row {
    /// The load.
    pub load: Load,
    /// By contender, then by repetition.
    pub runs: Vec<Vec<Measured>>,
}

impl Row {
    /// The repetitions of one contender, summed up.
    #[must_use]
    pub fn summary(&self, contender: usize, figure: Figure) -> Option<Summary> {
        Summary::of_runs(self.runs.get(contender)?, figure)
    }

    /// The first contender over another one.
    fn ratio(&self, over: usize, figure: Figure) -> Option<Summary> {
        let [first, ..] = &self.runs[..] else {
            return None;
        };
        Summary::of_ratios(first, self.runs.get(over).filter(|_| over > 0)?, figure)
    }
}

/// All loads on one backing.
#[derive(Clone, Debug)]
pub struct Part {
    /// What was behind the disks.
    pub backing: String,
    /// Their number.
    pub disks: u16,
    /// Names.
    pub contenders: Vec<String>,
    /// A row for each load.
    pub rows: Vec<Row>,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    /// One for each backing.
    pub parts: Vec<Part>,
    pub(super) times: Times,
    pub(super) notes: Vec<String>,
}

/// What is shown of each contender: for people, for scripts, how to get it.
pub(super) const FIGURES: [(&str, &str, Figure); 4] = [
    ("IOPS", "iops", |run| Some(run.iops())),
    ("CPU ns/IO", "cpu_ns_per_io", Measured::server_cpu_ns),
    ("p50 us", "latency_p50_us", |run| run.latency_us(50.0)),
    ("p99 us", "latency_p99_us", |run| run.latency_us(99.0)),
];

impl Report {
    /// Tables for people: a row for each load and contender.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = self.parts.iter().map(Part::table).collect();
        if let Some(last) = tables.last_mut() {
            last.note("medians; the contenders take turns");
            last.note(
                "ratio: the first one over this one, in pairs of repetitions: median (lowest-highest)",
            );
            last.note(
                "CPU: a server that polls uses its processor whether there is work or not; of raw it \
                 is the load's own",
            );
            for note in &self.notes {
                last.note(note.clone());
            }
        }
        tables
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "compare": self.parts.iter().map(Part::json).collect::<Vec<_>>() })
    }
}

impl Part {
    fn table(&self) -> Table {
        let mut columns = vec!["load".to_owned(), "server".to_owned()];
        columns.extend(["IOPS", "±"].map(str::to_owned));
        columns.extend(FIGURES[1..].iter().map(|(name, ..)| (*name).to_owned()));
        columns.extend(["ratio IOPS", "ratio CPU", "saturated"].map(str::to_owned));
        let disks = match self.disks {
            1 => String::new(),
            disks => format!(", {disks} disks"),
        };
        let mut table = Table::new(&format!("Backing: {}{disks}", self.backing), &columns);
        for row in &self.rows {
            for (index, name) in self.contenders.iter().enumerate() {
                let load = if index == 0 {
                    describe(&row.load)
                } else {
                    String::new()
                };
                let mut cells = vec![load, name.clone()];
                let iops = row.summary(index, FIGURES[0].2);
                cells.push(iops.map_or_else(String::new, |iops| number(iops.median)));
                cells.push(iops.map_or_else(String::new, |iops| {
                    format!("{:.1} %", iops.spread_percent())
                }));
                cells.extend(FIGURES[1..].iter().map(|(_, _, figure)| {
                    let summary = row.summary(index, *figure);
                    summary.map_or_else(|| "-".to_owned(), |summary| number(summary.median))
                }));
                for (_, _, figure) in &FIGURES[..2] {
                    let ratio = row.ratio(index, *figure);
                    cells.push(ratio.map_or_else(String::new, |ratio| ratio.ratio_text()));
                }
                cells.push(saturated(&row.runs[index], name));
                table.row(cells);
            }
        }
        table
    }

    fn json(&self) -> Value {
        let row = |row: &Row| {
            let mut servers = Map::new();
            for (index, name) in self.contenders.iter().enumerate() {
                let mut figures = Map::new();
                for (_, key, figure) in FIGURES {
                    let summary = row.summary(index, figure).map(|summary| summary.json());
                    figures.insert(key.to_owned(), summary.unwrap_or(Value::Null));
                }
                for (key, figure) in [("ratio_iops", FIGURES[0].2), ("ratio_cpu", FIGURES[1].2)] {
                    let ratio = row.ratio(index, figure);
                    let ratio = ratio.map_or(Value::Null, |ratio| ratio.json());
                    figures.insert(key.to_owned(), ratio);
                }
                servers.insert(name.clone(), Value::Object(figures));
            }
            json!({ "load": load_json(&row.load), "servers": servers })
        };
        json!({
            "backing": self.backing,
            "disks": self.disks,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

/// The side that was saturated in most repetitions; unknown without a server.
fn saturated(measured: &[Measured], name: &str) -> String {
    if name.starts_with("raw:") {
        return String::new();
    }
    let mut names: Vec<&str> = measured.iter().map(|one| one.saturated().name()).collect();
    names.sort_unstable();
    names.get(names.len() / 2).copied().unwrap_or("").to_owned()
}
