//! Plain-text tables: a line of headings and aligned columns.

use std::fmt;

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

    /// Appends a row; an empty cell is shown as a dash.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                cell
            }
        });
        self.rows.push(cells.collect());
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
        let mut table = TextTable::new(
            &[
                ("NAME", ColumnAlign::Left),
                ("SIZE", ColumnAlign::Right),
                ("FILE", ColumnAlign::Left),
            ],
            "nothing",
        );
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
}
