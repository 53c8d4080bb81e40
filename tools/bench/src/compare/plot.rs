//! Plot of a comparison: a group of bars for each load, a bar for each contender.

use super::report::{FIGURES, Part, Report};
use crate::contenders::{self, Row};
use crate::svg::{Figure, Panel, Point, Series};
use crate::units;

/// What each backing has a panel for: the figure, its name, so many of the figure's units.
const PANELS: [(contenders::Figure, &str, f64); 2] = [
    (FIGURES[0].2, "kIOPS", 1e3),
    (FIGURES[1].2, "CPU us per I/O", 1e3),
];

impl Report {
    /// For a report. Panels have all contenders, whether their backing has them or not: a colour is the
    /// same contender everywhere.
    #[must_use]
    pub fn figure(&self) -> Figure {
        let mut names: Vec<&str> = Vec::new();
        for name in self.parts.iter().flat_map(|part| &part.contenders) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let rows = self.parts.first().map_or(&[] as &[Row], |part| &part.rows);
        let panels = self.parts.iter().flat_map(|part| {
            let names = &names;
            PANELS.map(|(figure, unit_name, unit)| Panel {
                name: format!("{}: {unit_name}", part.backing),
                y_label: unit_name.to_owned(),
                series: names
                    .iter()
                    .map(|name| part.series(name, figure, unit))
                    .collect(),
            })
        });
        Figure {
            title: "The same load, in turn".to_owned(),
            subtitle: self.subtitle(rows),
            x_label: "requests in flight per queue, client".to_owned(),
            groups: rows
                .iter()
                .map(|row| format!("{}, {}", row.load.depth, row.load.waiting.name()))
                .collect(),
            panels: panels.collect(),
        }
    }

    /// What the loads have in common.
    fn subtitle(&self, rows: &[Row]) -> String {
        let load = rows.first().map(|row| &row.load);
        let load = load.map_or_else(String::new, |load| {
            let block = units::shown_bytes(load.block_bytes.into());
            format!("{} {block}, queues: {}; ", load.pattern, load.queues)
        });
        format!(
            "{load}medians of {} interleaved repetitions of {} s, error bars: half of their range; CPU of raw \
             is the load's own",
            self.times.repetitions,
            self.times.time.as_secs_f64()
        )
    }
}

impl Part {
    /// The bars of one contender, which may not be there.
    fn series(&self, name: &str, figure: contenders::Figure, unit: f64) -> Series {
        let index = self
            .contenders
            .iter()
            .position(|contender| contender == name);
        let point = |row: &Row| {
            let summary = row.summary(index?, figure)?;
            Some(Point {
                value: summary.median / unit,
                error: summary
                    .error
                    .map(|_| (summary.max - summary.min) / 2.0 / unit),
            })
        };
        Series {
            name: name.to_owned(),
            points: self.rows.iter().map(point).collect(),
        }
    }
}
