//! Results of `blockplane-bench monitors`: a table, JSON and a plot.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::clients::Rate;
use super::{Options, Report, Sample};
use crate::experiments::ERRORS;
use crate::load::latencies;
use crate::stats::{Summary, number};
use crate::svg::{Figure, Panel, Point, Series};
use crate::table::Table;

/// All rates in turn.
pub(super) struct Outcome {
    rows: Vec<Row>,
}

/// A rate, or no client.
struct Row {
    name: String,
    iops: Summary,
    /// Over those without clients in the same repetition.
    ratio: Option<Summary>,
    /// Answers per second, of all clients in sum.
    answers: Option<Summary>,
    /// From question to answer, of all repetitions.
    waits: Histogram<u64>,
    control_percent: Summary,
}

impl Outcome {
    /// The first of `rates` is that without clients.
    pub fn new(rates: &[Option<Rate>], samples: &[Vec<Sample>]) -> Self {
        let alone = samples.first().map_or(&[][..], Vec::as_slice);
        let rows = rates.iter().zip(samples);
        Outcome {
            rows: rows
                .filter_map(|(rate, samples)| Row::new(*rate, samples, alone))
                .collect(),
        }
    }

    pub fn report(&self, options: &Options, conditions: &str) -> Report {
        let title = format!(
            "A guest beside {} clients of a monitor, one of which never reads",
            options.clients
        );
        Report {
            tables: vec![self.table(&title, options)],
            json: json!({ "monitors": self.json(options) }),
            figure: self.figure(title, options, conditions),
        }
    }

    fn table(&self, title: &str, options: &Options) -> Table {
        let columns = [
            "the others",
            "IOPS",
            "to no client",
            "answers per s",
            "p50, us",
            "p99, us",
            "CPU of who answers",
        ];
        let mut table = Table::new(title, &columns.map(str::to_owned));
        for row in &self.rows {
            let text = |summary: Option<Summary>, unit| {
                summary.map_or_else(|| "-".to_owned(), |summary| summary.mean_text(unit))
            };
            let wait = |percent| row.wait_us(percent).map_or("-".to_owned(), number);
            let ratio = row.ratio.map(|ratio| {
                let error = ratio.error_percent();
                let error = error.map_or_else(String::new, |error| format!(" ±{error:.1} %"));
                format!("{:.3}x{error}", ratio.median)
            });
            table.row([
                row.name.clone(),
                row.iops.mean_text(1.0),
                ratio.unwrap_or_else(|| "-".to_owned()),
                text(row.answers, 1.0),
                wait(50.0),
                wait(99.0),
                format!("{:.1} %", row.control_percent.mean),
            ]);
        }
        table.note(ERRORS);
        table.note("but of the ratios to no client, within a repetition, the median");
        table.note(format!(
            "4k random reads, qd {}; clients have niceness {}; waits are from a question to the end of its answer",
            options.depth, options.clients_nice
        ));
        table
    }

    fn json(&self, options: &Options) -> Value {
        let row = |row: &Row| {
            json!({
                "clients": row.name,
                "iops": row.iops.json(),
                "ratio": row.ratio.map(|ratio| ratio.json()),
                "answers_per_s": row.answers.map(|answers| answers.json()),
                "answer_p50_us": row.wait_us(50.0),
                "answer_p99_us": row.wait_us(99.0),
                "control_cpu_percent": row.control_percent.json(),
            })
        };
        json!({
            "clients": options.clients,
            "clients_nice": options.clients_nice,
            "depth": options.depth,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    fn figure(&self, title: String, options: &Options, conditions: &str) -> Figure {
        let point = |row: &Row| {
            Some(Point {
                value: row.iops.mean / 1000.0,
                error: row.iops.error.map(|error| error / 1000.0),
            })
        };
        Figure {
            title,
            subtitle: format!(
                "4k random reads, qd {}; clients of niceness {}; {conditions}",
                options.depth, options.clients_nice
            ),
            x_label: "what the others do".to_owned(),
            groups: self.rows.iter().map(|row| row.name.clone()).collect(),
            panels: vec![Panel {
                name: String::new(),
                y_label: "kIOPS".to_owned(),
                series: vec![Series {
                    name: "the guest".to_owned(),
                    points: self.rows.iter().map(point).collect(),
                }],
            }],
        }
    }
}

impl Row {
    fn new(rate: Option<Rate>, samples: &[Sample], alone: &[Sample]) -> Option<Self> {
        let of = |value: &dyn Fn(&Sample) -> f64| {
            Summary::of(&samples.iter().map(value).collect::<Vec<_>>())
        };
        let pairs = samples.iter().zip(alone);
        let ratios: Vec<f64> = pairs
            .map(|(sample, alone)| sample.iops / alone.iops.max(1.0))
            .collect();
        let mut waits = latencies();
        for sample in samples {
            waits += &sample.heard.waits;
        }
        let answered = |sample: &Sample| {
            sample.heard.answers as f64 / sample.heard.time.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        Some(Row {
            name: rate.map_or_else(|| "no client".to_owned(), |rate| rate.to_string()),
            iops: of(&|sample| sample.iops)?,
            ratio: rate.and_then(|_| Summary::of(&ratios)),
            answers: rate.and_then(|_| of(&answered)),
            waits,
            control_percent: of(&|sample| sample.control_percent)?,
        })
    }

    fn wait_us(&self, percent: f64) -> Option<f64> {
        (!self.waits.is_empty()).then(|| self.waits.value_at_percentile(percent) as f64 / 1e3)
    }
}
