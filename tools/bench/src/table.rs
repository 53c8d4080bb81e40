//! Tables for a terminal and for Markdown: the first column to the left, figures to the right, notes below.

use std::fmt;

use comfy_table::CellAlignment;
use comfy_table::presets::ASCII_MARKDOWN;

/// A table in the making.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    table: comfy_table::Table,
    notes: Vec<String>,
}

impl Table {
    /// With its title and the names of its columns.
    #[must_use]
    pub fn new(
        title: impl Into<String>,
        columns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let mut table = comfy_table::Table::new();
        let columns = columns.into_iter().map(Into::into);
        table
            .load_style(ASCII_MARKDOWN)
            .set_header(columns.collect::<Vec<String>>());
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Table {
            title: title.into(),
            table,
            notes: Vec::new(),
        }
    }

    /// One more row; cells that are missing at its end stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.table.add_row(cells);
    }

    /// Something to know when reading it.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n\n{}\n", self.title, self.table)?;
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "* {note}"))
    }
}
