//! The `top` screen as an SVG picture, for web pages: text on a dark background, without scripts or fonts.

use std::fmt::Write;

use commands::xml::escape;

use super::screen::{LineStyle, StyledLine};

const CHAR_WIDTH: f64 = 8.4;
const LINE_HEIGHT: f64 = 20.0;
const MARGIN: f64 = 16.0;

/// The content of the SVG file.
pub(super) fn to_svg(lines: &[StyledLine]) -> String {
    let columns = lines
        .iter()
        .map(|line| line.text.chars().count())
        .max()
        .unwrap_or(0)
        .max(80);
    let width = columns as f64 * CHAR_WIDTH + 2.0 * MARGIN;
    let height = lines.len() as f64 * LINE_HEIGHT + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" \
         font-size=\"14\" role=\"img\">\n<title>blockplane top</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16181d\"/>\n"
    );
    for (index, line) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !line.text.trim().is_empty())
    {
        let top = MARGIN + index as f64 * LINE_HEIGHT;
        let (fill, weight) = match line.style {
            LineStyle::Plain => ("#d5d9e0", "normal"),
            LineStyle::Heading => ("#56b4e9", "bold"),
            LineStyle::Total => ("#ffffff", "bold"),
        };
        // An explicit length keeps columns aligned in any font.
        let text = line.text.trim_end();
        let length = text.chars().count() as f64 * CHAR_WIDTH;
        let written = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{:.0}\" fill=\"{fill}\" font-weight=\"{weight}\" xml:space=\"preserve\" \
             textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\">{}</text>",
            top + 14.0,
            escape(text)
        );
        debug_assert!(written.is_ok(), "a string takes everything");
    }
    out + "</svg>\n"
}
