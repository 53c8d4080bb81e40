//! Tables for a terminal: the first column to the left, figures to the right, notes below.

use std::fmt;

/// A table in the making.
#[derive(Clone, Debug, Default)]
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// With its title and the names of its columns.
    #[must_use]
    pub fn new(title: &str, columns: &[String]) -> Self {
        Table {
            title: title.to_owned(),
            rows: vec![columns.to_vec()],
            notes: Vec::new(),
        }
    }

    /// One more row; cells that are missing at its end stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Something to know when reading it.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let widths = self.widths();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 {
                    line += &format!("{cell:<width$}");
                } else {
                    line += &format!("  {cell:>width$}");
                }
            }
            writeln!(f, "{}", line.trim_end())?;
            if index == 0 {
                let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
                writeln!(f, "{}", "-".repeat(total))?;
            }
        }
        for note in &self.notes {
            writeln!(f, "* {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_notes_follow() {
        let columns = ["what", "ns", "±"].map(str::to_owned);
        let mut table = Table::new("Cost", &columns);
        table.row(["add".into(), "7".into(), "±1 %".into()]);
        table.row(["delete all".into(), "1,234".into()]);
        table.note("on this machine");
        let expected = "\
Cost
what           ns     ±
-----------------------
add             7  ±1 %
delete all  1,234
* on this machine
";
        assert_eq!(table.to_string(), expected);
    }
}
