//! One pair of axes with its bars or lines.

use std::fmt::{self, Write};

use super::axis::Axis;
use super::{
    AXIS_WIDTH, FAINT_TEXT, Figure, GRID, Kind, MARGIN, Panel, Point, Style, TEXT, WIDTH, colour,
    escaped, text,
};
use crate::stats::number;

const HEIGHT: f64 = 260.0;
/// Of a group's width, between groups.
const GROUP_GAP: f64 = 0.18;
const LABEL: Style = Style {
    size: 12.0,
    ..Style::PLAIN
};

/// Where values are on the page.
struct Place {
    left: f64,
    top: f64,
    width: f64,
    axis: Axis,
    groups: usize,
}

impl Place {
    fn bottom(&self) -> f64 {
        self.top + HEIGHT
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom() - value.max(0.0) / self.axis.end() * HEIGHT
    }

    fn group_width(&self) -> f64 {
        self.width / self.groups.max(1) as f64
    }

    fn middle(&self, group: usize) -> f64 {
        self.left + self.group_width() * (group as f64 + 0.5)
    }
}

/// Draws `panel` below `top`; returns where it ends.
pub(super) fn draw(
    out: &mut String,
    top: f64,
    figure: &Figure,
    panel: &Panel,
) -> Result<f64, fmt::Error> {
    let mut top = top;
    if !panel.name.is_empty() {
        let style = Style {
            weight: "bold",
            ..Style::PLAIN
        };
        text(out, MARGIN, top + 12.0, style, &panel.name)?;
        top += 26.0;
    }
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let largest = points()
        .flatten()
        .map(|point| point.value + point.error.unwrap_or(0.0))
        .fold(0.0, f64::max);
    let place = Place {
        left: MARGIN + AXIS_WIDTH,
        top,
        width: WIDTH - 2.0 * MARGIN - AXIS_WIDTH,
        axis: Axis::up_to(largest),
        groups: figure.groups.len(),
    };
    grid(out, &place, &panel.y_label)?;
    match figure.kind {
        Kind::Bars => bars(out, &place, figure, panel)?,
        Kind::Lines => lines(out, &place, figure, panel)?,
    }
    group_names(out, &place, figure)
}

fn grid(out: &mut String, place: &Place, y_label: &str) -> fmt::Result {
    let right = place.left + place.width;
    for value in place.axis.lines() {
        let y = place.y(value);
        let stroke = if value == 0.0 { TEXT } else { GRID };
        writeln!(
            out,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\" stroke=\"{stroke}\"/>",
            place.left - 5.0
        )?;
        let style = Style {
            anchor: "end",
            ..LABEL
        };
        text(
            out,
            place.left - 9.0,
            y + 4.0,
            style,
            &place.axis.label(value),
        )?;
    }
    let style = Style {
        anchor: "middle",
        fill: FAINT_TEXT,
        turned: -90.0,
        ..Style::PLAIN
    };
    text(out, MARGIN + 10.0, place.top + HEIGHT / 2.0, style, y_label)
}

fn bars(out: &mut String, place: &Place, figure: &Figure, panel: &Panel) -> fmt::Result {
    let bundle = place.group_width() * (1.0 - GROUP_GAP);
    // A lone bar does not fill the page.
    let width = (bundle / panel.series.len().max(1) as f64).min(56.0);
    for (group, group_name) in figure.groups.iter().enumerate() {
        let left = place.middle(group) - width * panel.series.len() as f64 / 2.0;
        for (index, series) in panel.series.iter().enumerate() {
            let Some(Some(point)) = series.points.get(group) else {
                continue;
            };
            let x = left + width * index as f64;
            let y = place.y(point.value);
            writeln!(
                out,
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\">{}</rect>",
                x + 0.5,
                (width - 1.0).max(0.5),
                place.bottom() - y,
                colour(index),
                tip(&series.name, group_name, *point)
            )?;
            error_bar(out, place, x + width / 2.0, *point, TEXT)?;
        }
    }
    Ok(())
}

fn lines(out: &mut String, place: &Place, figure: &Figure, panel: &Panel) -> fmt::Result {
    for (index, series) in panel.series.iter().enumerate() {
        let at = |(group, point): (usize, &Option<Point>)| {
            point.map(|point| (group, place.middle(group), place.y(point.value), point))
        };
        // What was not measured is a gap.
        let mut path = String::new();
        let mut gap = true;
        for point in series.points.iter().enumerate().map(at) {
            if let Some((_, x, y, _)) = point {
                write!(path, "{}{x:.1} {y:.1} ", if gap { 'M' } else { 'L' })?;
            }
            gap = point.is_none();
        }
        let colour = colour(index);
        writeln!(
            out,
            "<path class=\"line\" d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.trim_end()
        )?;
        for (group, x, y, point) in series.points.iter().enumerate().filter_map(at) {
            let group_name = figure.groups.get(group).map_or("", String::as_str);
            error_bar(out, place, x, point, colour)?;
            writeln!(
                out,
                "<circle class=\"point\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\">{}</circle>",
                tip(&series.name, group_name, point)
            )?;
        }
    }
    Ok(())
}

/// What a browser shows when the mouse is on it.
fn tip(series: &str, group: &str, point: Point) -> String {
    let value = number(point.value);
    let error = point
        .error
        .map_or_else(String::new, |error| format!(" ± {}", number(error)));
    format!(
        "<title>{}</title>",
        escaped(&format!("{group}, {series}: {value}{error}"))
    )
}

fn error_bar(out: &mut String, place: &Place, x: f64, point: Point, stroke: &str) -> fmt::Result {
    const CAP: f64 = 3.0;
    let Some(error) = point.error else {
        return Ok(());
    };
    let (high, low) = (
        place.y(point.value + error),
        place.y((point.value - error).max(0.0)),
    );
    writeln!(
        out,
        "<path class=\"error\" d=\"M{0:.1} {high:.1}H{1:.1}M{x:.1} {high:.1}V{low:.1}M{0:.1} {low:.1}H{1:.1}\" fill=\"none\" stroke=\"{stroke}\"/>",
        x - CAP,
        x + CAP
    )
}

/// Names below the axis: turned where they would run into each other.
fn group_names(out: &mut String, place: &Place, figure: &Figure) -> Result<f64, fmt::Error> {
    let longest = figure
        .groups
        .iter()
        .map(|group| LABEL.width(group))
        .fold(0.0, f64::max);
    let turned = longest > place.group_width() - 6.0;
    let mut bottom = place.bottom() + 20.0;
    for (group, name) in figure.groups.iter().enumerate() {
        let (anchor, turn) = if turned {
            ("end", -35.0)
        } else {
            ("middle", 0.0)
        };
        let style = Style {
            anchor,
            turned: turn,
            ..LABEL
        };
        text(out, place.middle(group), bottom, style, name)?;
    }
    if turned {
        bottom += longest * 35f64.to_radians().sin();
    }
    if figure.x_label.is_empty() {
        return Ok(bottom);
    }
    let style = Style {
        anchor: "middle",
        fill: FAINT_TEXT,
        ..Style::PLAIN
    };
    bottom += 22.0;
    text(
        out,
        place.left + place.width / 2.0,
        bottom,
        style,
        &figure.x_label,
    )?;
    Ok(bottom)
}
