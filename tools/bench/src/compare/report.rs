//! Results of a comparison, as tables and as JSON.

use serde_json::{Value, json};

use crate::load::{Load, Measured};
use crate::run::{Figure, describe, load_json};
use crate::stats::{Summary, number};
use crate::table::Table;

/// One load on all contenders.
pub(super) struct Row {
    pub load: Load,
    /// By contender, then by repetition.
    pub runs: Vec<Vec<Measured>>,
}

impl Row {
    pub(super) fn summary(&self, contender: usize, figure: Figure) -> Option<Summary> {
        Summary::of_runs(&self.runs[contender], figure)
    }

    /// The first contender over another one.
    fn ratio(&self, over: usize, figure: Figure) -> Option<Summary> {
        Summary::of_ratios(&self.runs[0], &self.runs[over], figure).filter(|_| over > 0)
    }

    /// The side that was saturated in most repetitions.
    fn saturated(&self, contender: usize) -> &'static str {
        let mut sides: Vec<&str> = self.runs[contender]
            .iter()
            .map(Measured::saturated)
            .collect();
        sides.sort_unstable();
        sides[sides.len() / 2]
    }
}

/// All loads on one backing.
pub(super) struct Part {
    /// What was behind the disks.
    pub backing: String,
    /// Their number.
    pub disks: u16,
    /// Names.
    pub contenders: Vec<String>,
    /// A row for each load.
    pub rows: Vec<Row>,
}

/// What is shown of each contender: for people, for scripts, how to get it. The first two have ratios.
pub(super) const FIGURES: [(&str, &str, Figure); 4] = [
    ("IOPS", "iops", |run| Some(run.iops())),
    ("CPU ns/IO", "cpu_ns_per_io", Measured::server_cpu_ns),
    ("p50 us", "latency_p50_us", |run| Some(run.latency_us(50.0))),
    ("p99 us", "latency_p99_us", |run| Some(run.latency_us(99.0))),
];

impl Part {
    /// A row for each load and contender.
    pub fn table(&self) -> Table {
        let columns = [
            "load",
            "server",
            "IOPS",
            "±",
            "CPU ns/IO",
            "p50 us",
            "p99 us",
            "ratio IOPS",
            "ratio CPU",
            "saturated",
        ];
        let disks = match self.disks {
            1 => String::new(),
            disks => format!(", {disks} disks"),
        };
        let mut table = Table::new(format!("Backing: {}{disks}", self.backing), columns);
        for row in &self.rows {
            for (index, name) in self.contenders.iter().enumerate() {
                let load = if index == 0 {
                    describe(&row.load)
                } else {
                    String::new()
                };
                let mut cells = vec![load, name.clone()];
                for (_, _, figure) in FIGURES {
                    let summary = row.summary(index, figure);
                    cells.push(summary.map_or_else(|| "-".to_owned(), |it| number(it.median)));
                }
                let spread = row.summary(index, FIGURES[0].2);
                let spread = spread.map(|it| format!("{:.1} %", it.spread_percent()));
                cells.insert(3, spread.unwrap_or_default());
                for (_, _, figure) in &FIGURES[..2] {
                    let ratio = row.ratio(index, *figure);
                    cells.push(ratio.map_or_else(String::new, |ratio| ratio.ratio_text()));
                }
                // Without a server there is one side only.
                let saturated = Some(row.saturated(index)).filter(|_| !name.starts_with("raw:"));
                cells.push(saturated.unwrap_or_default().to_owned());
                table.row(cells);
            }
        }
        table
    }

    pub fn json(&self) -> Value {
        let shown = |summary: Option<Summary>| summary.map(|summary| summary.json());
        let row = |row: &Row| {
            let mut servers = json!({});
            for (index, name) in self.contenders.iter().enumerate() {
                for (_, key, figure) in FIGURES {
                    servers[name][key] = shown(row.summary(index, figure)).into();
                }
                servers[name]["ratio_iops"] = shown(row.ratio(index, FIGURES[0].2)).into();
                servers[name]["ratio_cpu"] = shown(row.ratio(index, FIGURES[1].2)).into();
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
