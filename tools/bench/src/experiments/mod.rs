//! Experiments on blockplane's own mechanisms: the same load with the mechanism and without it.
//!
//! Each starts one server per variant and loads them in turn, so that whatever else
//! the machine does affects all of them ([`contest`]). What they share is below: where the
//! disk is and who runs where ([`setup`]), the load itself ([`drive`]), what servers counted
//! ([`counters`]). A variant without the mechanism is a program of its own,
//! built with a patch ([`patched`], `docs/experiments.md`).

pub mod batch_limit;
pub mod completion_ring;
mod contest;
mod counters;
mod drive;
pub mod many_queues;
pub mod monitors;
pub mod notify;
mod patched;
pub mod scsi;
mod setup;

use serde_json::Value;

use crate::svg::{Figure, Panel, Point, Series};
use crate::table::Table;
use contest::{Cell, Outcome};
pub use patched::Patched;
pub use setup::Setup;

/// What an experiment has to say.
pub struct Report {
    /// The result for people.
    pub tables: Vec<Table>,
    /// For scripts.
    pub json: Value,
    /// For a report.
    pub figure: Figure,
}

/// How the `±` of every table is to be read.
pub(crate) const ERRORS: &str =
    "mean of all repetitions; ± is the standard error of that mean, in percent of it";

/// One panel: a group for each load of `loads`, a series for each variant.
fn panel(
    name: &str,
    y_label: &str,
    outcome: &Outcome,
    loads: &[usize],
    value: impl Fn(&Cell) -> crate::stats::Summary,
    unit: f64,
) -> Panel {
    let series = outcome.variants.iter().enumerate().map(|(variant, name)| {
        let point = |load: &usize| {
            let summary = value(outcome.cells.get(*load)?.get(variant)?);
            Some(Point {
                value: summary.mean / unit,
                error: summary.error.map(|error| error / unit),
            })
        };
        Series {
            name: name.clone(),
            points: loads.iter().map(point).collect(),
        }
    });
    Panel {
        name: name.to_owned(),
        y_label: y_label.to_owned(),
        series: series.collect(),
    }
}
