//! Results of the SCSI experiment.

use serde_json::{Value, json};

use super::{AccessPath, Options, Repetitions, SMALL_BYTES};
use crate::experiments::{ERRORS, Report};
use crate::load::{Load, Measured};
use crate::stats::{Summary, number};
use crate::svg::{Figure, Panel, Point, Series};
use crate::table::Table;
use crate::units::shown_bytes;

/// `64k write`
pub(super) fn name(load: &Load) -> String {
    let kind = if load.pattern.writes() {
        "write"
    } else {
        "read"
    };
    format!("{} {kind}", shown_bytes(load.block_bytes.into()))
}

/// Pairs that are compared: who, and with whom.
const PAIRS: [(&str, &str); 4] = [
    ("LSI", "virtio-scsi"),
    ("virtio-scsi", "virtio-blk"),
    ("virtio-blk", "host"),
    ("LSI", "LSI, as of old"),
];

/// All figures.
pub(super) struct Outcome {
    pub ways: Vec<AccessPath>,
    pub loads: Vec<Load>,
    pub measured: Repetitions,
}

type Value1 = fn(&Load, &Measured) -> Option<f64>;

fn megabytes(_: &Load, measured: &Measured) -> Option<f64> {
    Some(measured.mb_per_s())
}

/// A request is one also where it went in pieces.
fn cpu_us(load: &Load, measured: &Measured) -> Option<f64> {
    let pieces = f64::from(load.block_bytes) / f64::from(measured.block_bytes);
    Some(measured.server_cpu_ns()? * pieces / 1e3)
}

fn sleeps(load: &Load, measured: &Measured) -> Option<f64> {
    let pieces = f64::from(load.block_bytes) / f64::from(measured.block_bytes);
    let completed = measured.completed().max(1) as f64;
    let server = measured.server.as_ref()?;
    Some(server.used.voluntary_switches as f64 * pieces / completed)
}

impl Outcome {
    fn summary(&self, load: usize, way: usize, value: Value1) -> Option<Summary> {
        let values = self.measured[load][way].iter();
        let values: Option<Vec<f64>> = values.map(|it| value(&self.loads[load], it)).collect();
        Summary::of(&values?)
    }

    /// From the pairs of each repetition.
    fn ratio(&self, load: usize, of: &str, over: &str) -> Option<Summary> {
        let find = |name: &str| self.ways.iter().position(|way| way.to_string() == name);
        let (of, over) = (find(of)?, find(over)?);
        let pairs = self.measured[load][of]
            .iter()
            .zip(&self.measured[load][over]);
        let ratios: Vec<f64> = pairs
            .filter(|(_, over)| over.mb_per_s() > 0.0)
            .map(|(of, over)| of.mb_per_s() / over.mb_per_s())
            .collect();
        Summary::of(&ratios)
    }

    pub fn report(&self, options: &Options, conditions: &str) -> Report {
        Report {
            tables: vec![self.rates(options), self.ratios(), self.costs()],
            json: json!({ "scsi": self.json() }),
            figure: self.figure(options, conditions),
        }
    }

    fn table(&self, title: &str, first: &str) -> Table {
        let mut columns = vec![first.to_owned()];
        columns.extend(self.ways.iter().map(AccessPath::to_string));
        Table::new(title, &columns)
    }

    fn row(&self, load: usize, what: &str, text: impl Fn(usize) -> Option<String>) -> Vec<String> {
        let mut row = vec![format!("{}{what}", name(&self.loads[load]))];
        let cells = 0..self.ways.len();
        row.extend(cells.map(|way| text(way).unwrap_or_else(|| "-".to_owned())));
        row
    }

    fn rates(&self, options: &Options) -> Table {
        let mut table = self.table("An emulated SCSI adapter beside virtio", "random");
        for (index, load) in self.loads.iter().enumerate() {
            let small = load.block_bytes == SMALL_BYTES;
            let unit = match small {
                true => f64::from(SMALL_BYTES) * 1e3 / 1e6,
                false => 1.0,
            };
            let what = match small {
                true => format!(", qd {}, kIOPS", load.depth),
                false => format!(", qd {}, MB/s", load.depth),
            };
            table.row(self.row(index, &what, |way| {
                Some(self.summary(index, way, megabytes)?.mean_text(unit))
            }));
        }
        table.note(format!(
            "as of old: a write has the SCSI bus until it is done, and requests go in pieces of {}k, one after the other; \
             pieces: writes are queued like reads",
            options.piece_kib
        ));
        table.note(ERRORS);
        table
    }

    fn ratios(&self) -> Table {
        let mut columns = vec!["median (lowest-highest) of pairs".to_owned()];
        columns.extend(PAIRS.map(|(of, over)| format!("{of} / {over}")));
        let mut table = Table::new("How many times as fast", &columns);
        for (index, load) in self.loads.iter().enumerate() {
            let cells = PAIRS.map(|(of, over)| {
                self.ratio(index, of, over).map_or_else(
                    || "-".to_owned(),
                    |ratio| {
                        let Summary {
                            median, min, max, ..
                        } = ratio;
                        format!("{} ({}-{})", number(median), number(min), number(max))
                    },
                )
            });
            table.row(std::iter::once(name(load)).chain(cells));
        }
        table
    }

    fn costs(&self) -> Table {
        let mut table = self.table(
            "What a request cost the server",
            "CPU us (sleeps) per request",
        );
        for index in 0..self.loads.len() {
            table.row(self.row(index, "", |way| {
                let cpu = self.summary(index, way, cpu_us)?;
                let sleeps = self.summary(index, way, sleeps)?;
                Some(format!("{} ({:.3})", number(cpu.mean), sleeps.mean))
            }));
        }
        table.note("the host's are the load's own; a server that polls uses its processor whether there is work or not");
        table
    }

    fn json(&self) -> Value {
        let row = |(index, load): (usize, &Load)| {
            let figure = |(way, measured): (usize, &Vec<Measured>)| {
                let summary = |value: Value1| self.summary(index, way, value).map(|it| it.json());
                json!({
                    "way": self.ways[way].to_string(),
                    "mb_per_s": summary(megabytes),
                    "cpu_us_per_request": summary(cpu_us),
                    "sleeps_per_request": summary(sleeps),
                    "command_bytes": measured.first().map(|it| it.block_bytes),
                    "commands": measured.iter().map(Measured::completed).sum::<u64>(),
                })
            };
            let there = self.measured[index].iter().enumerate();
            let there = there.filter(|(_, measured)| !measured.is_empty());
            let ratios = PAIRS.into_iter().filter_map(|(of, over)| {
                let ratio = self.ratio(index, of, over)?.json();
                Some(json!({ "of": of, "over": over, "ratio": ratio }))
            });
            json!({
                "block_bytes": load.block_bytes,
                "write": load.pattern.writes(),
                "depth": load.depth,
                "figures": there.map(figure).collect::<Vec<_>>(),
                "ratios": ratios.collect::<Vec<_>>(),
            })
        };
        json!({ "loads": self.loads.iter().enumerate().map(row).collect::<Vec<_>>() })
    }

    /// One panel: a group for each load, but the small ones.
    fn figure(&self, options: &Options, conditions: &str) -> Figure {
        let large: Vec<usize> = (0..self.loads.len() - 1).collect();
        let series = self.ways.iter().enumerate().map(|(way, name)| {
            let point = |load: &usize| {
                let summary = self.summary(*load, way, megabytes)?;
                Some(Point {
                    value: summary.mean,
                    error: summary.error,
                })
            };
            Series {
                name: name.to_string(),
                points: large.iter().map(point).collect(),
            }
        });
        Figure {
            title: "An emulated SCSI adapter beside virtio".to_owned(),
            subtitle: format!("Random requests, {} in flight; {conditions}", options.depth),
            x_label: "request".to_owned(),
            groups: large.iter().map(|load| name(&self.loads[*load])).collect(),
            panels: vec![Panel {
                name: "throughput".to_owned(),
                y_label: "MB/s".to_owned(),
                series: series.collect(),
            }],
        }
    }
}
