//! Plots for a report: grouped bars or lines with error bars, as SVG on white.
//!
//! A [`Figure`] is one or more panels above each other, which share groups, series and legend. The
//! colours are told apart by colour-blind readers (Okabe and Ito's), text stays text, and the axis
//! begins at zero: half a bar is half the figure. Values are categories along the horizontal axis,
//! equally spaced. There is no script, no style sheet and no date in it, so that the same figures
//! give the same file.

mod axis;
mod legend;
mod panel;

use std::fmt::{self, Write};

use commands::xml::escaped;

/// Okabe, Ito: Color Universal Design (2008); without its yellow, which white swallows.
const COLOURS: [&str; 7] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5f5f5f",
];
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
/// Left of a panel: room for the axis' numbers and name.
const AXIS_WIDTH: f64 = 76.0;
const TEXT: &str = "#1a1a1a";
const FAINT_TEXT: &str = "#555555";
const GRID: &str = "#dddddd";

/// How values are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bars side by side, a bundle for each group.
    Bars,
    /// A line for each series, through its groups.
    Lines,
}

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
    /// How values are drawn.
    pub kind: Kind,
    /// From top to bottom.
    pub panels: Vec<Panel>,
}

/// The file's content.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.series_names();
        let mut body = String::new();
        let mut top = MARGIN + 18.0;
        text(&mut body, MARGIN, top, Style::TITLE, &self.title)?;
        for line in wrapped(&self.subtitle, Style::SUBTITLE, WIDTH - 2.0 * MARGIN) {
            top += 20.0;
            text(&mut body, MARGIN, top, Style::SUBTITLE, &line)?;
        }
        top = legend::draw(&mut body, top + 14.0, &names, self.kind)?;
        for panel in &self.panels {
            top = panel::draw(&mut body, top + 18.0, self, panel)?;
        }
        let height = top + MARGIN;
        write!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" \
             role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n",
            escaped(&self.title),
            escaped(&self.subtitle)
        )
    }
}

impl Figure {
    /// Those of the first panel stand for all.
    fn series_names(&self) -> Vec<&str> {
        let first = self.panels.first();
        let series = first.map_or(&[] as &[Series], |panel| &panel.series);
        series.iter().map(|series| series.name.as_str()).collect()
    }
}

/// The colour of the series at `index`. More series than colours begin again.
fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// How a piece of text looks.
#[derive(Clone, Copy)]
struct Style {
    size: f64,
    anchor: &'static str,
    fill: &'static str,
    weight: &'static str,
    /// Degrees around its place.
    turned: f64,
}

impl Style {
    const PLAIN: Style = Style {
        size: 13.0,
        anchor: "start",
        fill: TEXT,
        weight: "normal",
        turned: 0.0,
    };
    const TITLE: Style = Style {
        size: 19.0,
        weight: "bold",
        ..Style::PLAIN
    };
    const SUBTITLE: Style = Style {
        size: 13.0,
        fill: FAINT_TEXT,
        ..Style::PLAIN
    };

    /// About: nobody tells us the font's widths. Rather too wide than too narrow.
    fn width(self, text: &str) -> f64 {
        text.chars().count() as f64 * self.size * 0.56
    }
}

fn text(out: &mut String, x: f64, y: f64, style: Style, text: &str) -> fmt::Result {
    let Style {
        size,
        anchor,
        fill,
        weight,
        turned,
    } = style;
    write!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{fill}\""
    )?;
    if anchor != Style::PLAIN.anchor {
        write!(out, " text-anchor=\"{anchor}\"")?;
    }
    if weight != Style::PLAIN.weight {
        write!(out, " font-weight=\"{weight}\"")?;
    }
    if turned != 0.0 {
        write!(out, " transform=\"rotate({turned} {x:.1} {y:.1})\"")?;
    }
    writeln!(out, ">{}</text>", escaped(text))
}

/// Lines of whole words, none wider than `width` unless one word is.
fn wrapped(text: &str, style: Style, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if style.width(line) + style.width(" ") + style.width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests;
