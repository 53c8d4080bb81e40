//! Plain-text tables: a line of headings and aligned columns.

use std::fmt;

use commands::printable_in_line;

/// Most characters of a cell that are shown; `…` replaces the rest.
const MAX_CELL_CHARS: usize = 256;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnAlign {
    Left,
    Right,
}

/// A table; [`fmt::Display`] lays it out.
#[derive(Clone, Debug)]
pub(crate) struct TextTable {
    columns: Vec<(&'static str, ColumnAlign)>,
    rows: Vec<Vec<String>>,
    /// The text that replaces a table without rows.
    text_if_empty: &'static str,
}

impl TextTable {
    /// Creates a table without rows.
    pub fn new(columns: &[(&'static str, ColumnAlign)], text_if_empty: &'static str) -> Self {
        TextTable {
            columns: columns.to_vec(),
            rows: Vec::new(),
            text_if_empty,
        }
    }

    /// Appends a row; an empty cell is shown as a dash, control characters are escaped.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| displayed_cell(&cell));
        self.rows.push(cells.collect());
    }
}

/// A cell as it is shown: one line that cannot control the terminal, of bounded length.
fn displayed_cell(cell: &str) -> String {
    if cell.is_empty() {
        return "-".to_owned();
    }
    let escaped = printable_in_line(cell);
    match escaped.chars().nth(MAX_CELL_CHARS) {
        Some(_) => escaped
            .chars()
            .take(MAX_CELL_CHARS - 1)
            .chain(['…'])
            .collect(),
        None => escaped,
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return writeln!(f, "{}", self.text_if_empty);
        }
        let headings: Vec<String> = self
            .columns
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let all_rows = || std::iter::once(&headings).chain(&self.rows);
        let width = |column: usize| {
            let cells = all_rows().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..headings.len()).map(width).collect();
        for row in all_rows() {
            let mut line = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match align {
                    ColumnAlign::Left => line.push_str(&format!("{cell:<width$}")),
                    ColumnAlign::Right => line.push_str(&format!("{cell:>width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let left = ColumnAlign::Left;
        let columns = [("NAME", left), ("SIZE", ColumnAlign::Right), ("FILE", left)];
        let mut table = TextTable::new(&columns, "nothing");
        assert_eq!(table.to_string(), "nothing\n");
        table.add_row(["a".into(), "10 GiB".into(), "/a".into()]);
        table.add_row(["disk0".into(), String::new(), "ü".into()]);
        let expected = "\
NAME     SIZE  FILE
a      10 GiB  /a
disk0       -  ü
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn hostile_cells_stay_in_their_line() {
        let mut table = TextTable::new(&[("NAME", ColumnAlign::Left)], "nothing");
        table.add_row(["a\u{1b}[2J\nb".into()]);
        table.add_row(["x".repeat(100_000)]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "a\\u{1b}[2J\\nb");
        assert_eq!(lines[2], format!("{}…", "x".repeat(MAX_CELL_CHARS - 1)));
        assert_eq!(lines.len(), 3);
    }
}
