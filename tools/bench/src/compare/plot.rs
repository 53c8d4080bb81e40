//! Plot of a comparison: grouped bars with error bars, as SVG on white.
//!
//! Each backing has a panel for each figure, with a group for each load, and a bar for each contender. The colours are distinct for
//! colour-blind readers (Okabe and Ito's), and the axis begins at zero: half a bar is half the figure. There is no script and no
//! date in it, so that the same figures give the same file.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::{FIGURES, Part};
use crate::load::Times;
use crate::run::Figure;
use crate::units;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// What each backing has a panel for: the figure, its unit, so many of the figure's own units.
const PANELS: [(Figure, &str, f64); 2] = [
    (FIGURES[0].2, "kIOPS", 1e3),
    (FIGURES[1].2, "CPU us per I/O", 1e3),
];

/// Okabe, Ito: Color Universal Design (2008); without its yellow, which white swallows. More contenders begin again.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x5f, 0x5f, 0x5f),
];
const WIDTH: u32 = 960;
const PANEL_HEIGHT: u32 = 330;
const TITLE: (&str, u32) = ("sans-serif", 24);
const TEXT: (&str, u32) = ("sans-serif", 16);
const LINE_HEIGHT: u32 = 22;
/// Of a group's width, its bars.
const BARS: f64 = 0.82;

/// The content of an SVG file.
///
/// # Errors
/// What the library says of a figure that cannot be drawn.
pub(super) fn svg(parts: &[Part], times: Times) -> io::Result<String> {
    let mut out = String::new();
    draw(parts, times, &mut out).map_err(io::Error::other)?;
    // A name may contain what XML does not take.
    out.retain(|c| c == '\n' || !c.is_control());
    Ok(out)
}

fn draw(parts: &[Part], times: Times, out: &mut String) -> Drawn {
    // A colour is the same contender in all panels, whether their backing has it or not.
    let mut names: Vec<&str> = Vec::new();
    for name in parts.iter().flat_map(|part| &part.contenders) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let count = parts.len() * PANELS.len();
    let head = 3 * LINE_HEIGHT;
    let height = head + PANEL_HEIGHT * u32::try_from(count).unwrap_or(1);
    let page = SVGBackend::with_string(out, (WIDTH, height)).into_drawing_area();
    page.fill(&WHITE)?;
    let page = page
        .margin(8, 0, 0, 0)
        .titled("The same load, in turn", TITLE)?;
    let page = page.titled(&subtitle(parts, times), TEXT)?;
    let (plots, legend) = page.split_horizontally(WIDTH * 3 / 4);
    for ((index, name), y) in names.iter().enumerate().zip((40..).step_by(18)) {
        legend.draw(&Rectangle::new([(0, y), (14, y + 14)], colour(index)))?;
        legend.draw(&Text::new(*name, (20, y), TEXT))?;
    }
    let panels = parts
        .iter()
        .flat_map(|part| PANELS.map(|panel| (part, panel)));
    for ((part, panel), area) in panels.zip(plots.split_evenly((count.max(1), 1))) {
        part.draw(panel, &names, &area)?;
    }
    page.present()
}

/// What the loads have in common.
fn subtitle(parts: &[Part], times: Times) -> String {
    let rows = parts.first().map(|part| &part.rows);
    let load = rows.and_then(|rows| rows.first()).map(|row| &row.load);
    let load = load.map_or_else(String::new, |load| {
        let block = units::shown_bytes(load.block_bytes);
        format!("{} {block}, queues: {}; ", load.pattern, load.queues)
    });
    format!(
        "{load}medians of {} interleaved repetitions of {} s, error bars: half of their range",
        times.repetitions,
        times.time.as_secs_f64()
    )
}

impl Part {
    fn draw(
        &self,
        (figure, unit, scale): (Figure, &str, f64),
        names: &[&str],
        area: &Area<'_>,
    ) -> Drawn {
        let summary = |row: usize, name: &str| {
            let contender = self.contenders.iter().position(|other| other == name)?;
            self.rows[row].summary(contender, figure)
        };
        let groups = 0..self.rows.len();
        let all = groups
            .clone()
            .flat_map(|row| names.iter().map(move |name| (row, *name)));
        let ends = all.filter_map(|(row, name)| Some(summary(row, name)?.max / scale));
        // An axis has a length.
        let largest = ends.fold(f64::MIN_POSITIVE.sqrt(), f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}: {unit}", self.backing), TEXT)
            .margin(16)
            .x_label_area_size(2 * LINE_HEIGHT)
            .y_label_area_size(4 * LINE_HEIGHT)
            .build_cartesian_2d(0.0..self.rows.len().max(1) as f64, 0.0..1.05 * largest)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .light_line_style(TRANSPARENT)
            .x_desc("requests in flight per queue, client")
            .y_desc(unit)
            .y_labels(6)
            .y_label_formatter(&|value| ((value * 1e6).round() / 1e6).to_string())
            .label_style(TEXT)
            .draw()?;
        let centred = TEXT
            .with_anchor::<RGBColor>(Pos::new(HPos::Center, VPos::Top))
            .into_text_style(area);
        let width = BARS / names.len().max(2) as f64;
        for (row, group) in groups.zip(&self.rows) {
            let middle = row as f64 + 0.5;
            let name = format!("{}, {}", group.load.depth, group.load.waiting);
            let name = Text::new(name, (0, 8), centred.clone());
            chart.draw_series([EmptyElement::at((middle, 0.0)) + name])?;
            for (index, name) in names.iter().enumerate() {
                let Some(summary) = summary(row, name) else {
                    continue;
                };
                let left = middle + width * (index as f64 - names.len() as f64 / 2.0);
                let value = summary.median / scale;
                let bar = Rectangle::new([(left, 0.0), (left + width, value)], colour(index));
                chart.draw_series([bar])?;
                if summary.max > summary.min {
                    let half = (summary.max - summary.min) / 2.0 / scale;
                    let (low, high) = ((value - half).max(0.0), value + half);
                    let at = left + width / 2.0;
                    chart.draw_series([ErrorBar::new_vertical(at, low, value, high, BLACK, 6)])?;
                }
            }
        }
        Ok(())
    }
}

fn colour(index: usize) -> ShapeStyle {
    COLOURS[index % COLOURS.len()].filled()
}
