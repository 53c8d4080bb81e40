//! The legend: which colour is what, in as many lines as it takes.

use std::fmt::{self, Write};

use super::{Kind, MARGIN, Style, WIDTH, colour, text};

const SWATCH: f64 = 14.0;
const GAP: f64 = 22.0;
const LINE: f64 = 22.0;

/// Draws it below `top`; returns where it ends. One series needs none.
pub(super) fn draw(
    out: &mut String,
    top: f64,
    names: &[&str],
    kind: Kind,
) -> Result<f64, fmt::Error> {
    if names.len() < 2 {
        return Ok(top);
    }
    let (mut x, mut y) = (MARGIN, top + SWATCH);
    for (index, name) in names.iter().enumerate() {
        let width = SWATCH + 6.0 + Style::PLAIN.width(name);
        if x > MARGIN && x + width > WIDTH - MARGIN {
            x = MARGIN;
            y += LINE;
        }
        let colour = colour(index);
        match kind {
            Kind::Bars => writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{SWATCH}\" height=\"{SWATCH}\" fill=\"{colour}\"/>",
                y - SWATCH + 2.0
            )?,
            Kind::Lines => writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>",
                y - SWATCH / 2.0 + 2.0,
                x + SWATCH
            )?,
        }
        text(out, x + SWATCH + 6.0, y, Style::PLAIN, name)?;
        x += width + GAP;
    }
    Ok(y + 6.0)
}
