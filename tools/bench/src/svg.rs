//! Plots for a report: grouped bars with error bars, as SVG on white.
//!
//! A [`Figure`] is one or more panels above each other, which share groups, series and legend. The
//! colours are distinct for colour-blind readers (Okabe and Ito's), and the axis begins at zero:
//! half a bar is half the figure. There is no script and no date in it, so that the same figures
//! give the same file.

use std::io;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// Okabe, Ito: Color Universal Design (2008); without its yellow, which white swallows.
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
const MARGIN: u32 = 16;
const TITLE: (&str, u32) = ("sans-serif", 24);
const TEXT: (&str, u32) = ("sans-serif", 16);
const LINE_HEIGHT: u32 = 22;
const LINE_STEP: usize = 18;
/// Approximate width of a character of `TEXT`: the font is unknown.
const CHAR_WIDTH: u32 = 8;
/// Of a group's width, its bars.
const BARS: f64 = 0.82;

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Not negative.
    pub value: f64,
    /// Half the length of the error bar, in the value's unit; `None` where it is not known.
    pub error: Option<f64>,
}

/// What is compared: one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// One for each group; `None` where nothing was measured.
    pub points: Vec<Option<Point>>,
}

/// One pair of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What this panel shows and the others do not; empty when there is one.
    pub name: String,
    /// What is measured, with its unit.
    pub y_label: String,
    /// In the same order in all panels.
    pub series: Vec<Series>,
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The question that it answers.
    pub title: String,
    /// Under what load.
    pub subtitle: String,
    /// What the groups are.
    pub x_label: String,
    /// Their names, from left to right.
    pub groups: Vec<String>,
    /// From top to bottom.
    pub panels: Vec<Panel>,
}

impl Figure {
    /// The file's content.
    ///
    /// # Errors
    /// What the library says of a figure that cannot be drawn.
    pub fn svg(&self) -> io::Result<String> {
        let mut out = String::new();
        self.draw(&mut out).map_err(io::Error::other)?;
        // A name may contain what XML does not take.
        out.retain(|c| c == '\n' || !c.is_control());
        Ok(out)
    }

    fn draw(&self, out: &mut String) -> Drawn {
        let subtitle = wrapped(&self.subtitle, WIDTH);
        let head = LINE_HEIGHT * (2 + pixels(subtitle.len()));
        let panels = PANEL_HEIGHT * pixels(self.panels.len());
        let mut page = SVGBackend::with_string(out, (WIDTH, head + panels)).into_drawing_area();
        page.fill(&WHITE)?;
        page = page.margin(8, 0, 0, 0).titled(&self.title, TITLE)?;
        for line in &subtitle {
            page = page.titled(line, TEXT)?;
        }
        let names = self.series_names();
        let (plots, legend) = page.split_horizontally(WIDTH - legend_width(&names));
        if names.len() > 1 {
            draw_legend(&legend, &names)?;
        }
        let rows = plots.split_evenly((self.panels.len().max(1), 1));
        for (panel, area) in self.panels.iter().zip(rows) {
            self.draw_panel(panel, &area)?;
        }
        page.present()
    }

    /// Those of the first panel stand for all.
    fn series_names(&self) -> Vec<&str> {
        let series = self.panels.iter().take(1).flat_map(|panel| &panel.series);
        series.map(|series| series.name.as_str()).collect()
    }

    fn draw_panel(&self, panel: &Panel, area: &Area<'_>) -> Drawn {
        let points = panel.series.iter().flat_map(|series| &series.points);
        let ends = points
            .flatten()
            .map(|point| point.value + point.error.unwrap_or(0.0));
        // An axis has a length.
        let largest = ends.fold(f64::MIN_POSITIVE.sqrt(), f64::max);
        let group_width =
            (area.dim_in_pixel().0 - 5 * LINE_HEIGHT) / pixels(self.groups.len().max(1));
        let names: Vec<_> = self
            .groups
            .iter()
            .map(|name| wrapped(name, group_width))
            .collect();
        let lines = names.iter().map(Vec::len).max().unwrap_or(0);
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.name, TEXT)
            .margin(MARGIN)
            .x_label_area_size(LINE_HEIGHT * (1 + pixels(lines)))
            .y_label_area_size(4 * LINE_HEIGHT)
            .build_cartesian_2d(0.0..self.groups.len().max(1) as f64, 0.0..1.05 * largest)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .light_line_style(TRANSPARENT)
            .x_desc(&self.x_label)
            .y_desc(&panel.y_label)
            .y_labels(6)
            .y_label_formatter(&|value| ((value * 1e6).round() / 1e6).to_string())
            .label_style(TEXT)
            .draw()?;
        let centred = TEXT
            .with_anchor::<RGBColor>(Pos::new(HPos::Center, VPos::Top))
            .into_text_style(area);
        for (group, name) in names.iter().enumerate() {
            let at = (group as f64 + 0.5, 0.0);
            for (line, y) in name.iter().zip((8..).step_by(LINE_STEP)) {
                chart.draw_series([
                    EmptyElement::at(at) + Text::new(line.clone(), (0, y), centred.clone())
                ])?;
            }
        }
        let width = BARS / panel.series.len().max(2) as f64;
        let bundle = width * panel.series.len() as f64;
        for (index, series) in panel.series.iter().enumerate() {
            let points = series.points.iter().enumerate();
            for (group, point) in points.filter_map(|(group, point)| Some((group, (*point)?))) {
                let left = group as f64 + 0.5 - bundle / 2.0 + width * index as f64;
                let corners = [(left, 0.0), (left + width, point.value)];
                let bar = Rectangle::new(corners, colour(index));
                chart.draw_series([bar])?;
                if let Some(error) = point.error {
                    let (low, high) = ((point.value - error).max(0.0), point.value + error);
                    let middle = left + width / 2.0;
                    let bar = ErrorBar::new_vertical(middle, low, point.value, high, BLACK, 6);
                    chart.draw_series([bar])?;
                }
            }
        }
        Ok(())
    }
}

/// The colour of the series at `index`. More series than colours begin again.
fn colour(index: usize) -> ShapeStyle {
    COLOURS[index % COLOURS.len()].filled()
}

/// One series needs none.
fn legend_width(names: &[&str]) -> u32 {
    if names.len() < 2 {
        return 0;
    }
    let longest = names.iter().map(|name| name.chars().count()).max();
    (pixels(longest.unwrap_or(0)) * CHAR_WIDTH + 2 * LINE_HEIGHT).min(WIDTH / 3)
}

fn draw_legend(area: &Area<'_>, names: &[&str]) -> Drawn {
    for ((index, name), y) in names.iter().enumerate().zip((40..).step_by(LINE_STEP)) {
        area.draw(&Rectangle::new([(0, y), (14, y + 14)], colour(index)))?;
        area.draw(&Text::new(*name, (20, y), TEXT))?;
    }
    Ok(())
}

/// Lines of whole words, none wider than `width` unless one word is.
fn wrapped(text: &str, width: u32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line)
                if pixels(line.chars().count() + 1 + word.chars().count()) * CHAR_WIDTH
                    <= width =>
            {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn pixels(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX / 1000)
}

#[cfg(test)]
mod tests;
