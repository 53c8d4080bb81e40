//! The figures of `blockplane-bench handlers`, as a table and as JSON.

use serde_json::{Value, json};

use crate::stats::{Summary, count, number};
use crate::table::Table;

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// `epoll`, `no kernel` (a poller that does nothing), or `slab` (no descriptors either).
    pub poller: String,
    /// What was done.
    pub operation: String,
    /// Handlers registered.
    pub registered: usize,
    /// Cost of one operation in nanoseconds; `None` where there were not enough handlers.
    pub cost_ns: Option<Summary>,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Report {
    registered: Vec<usize>,
    cells: Vec<Cell>,
    notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(registered: Vec<usize>) -> Self {
        Report {
            registered,
            cells: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn record(
        &mut self,
        poller: &str,
        operation: &str,
        registered: usize,
        cost_ns: Option<Summary>,
    ) {
        self.cells.push(Cell {
            poller: poller.to_owned(),
            operation: operation.to_owned(),
            registered,
            cost_ns,
        });
    }

    /// All figures, in order of measuring.
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The table for people: rows are operations, columns numbers of handlers, and how much the last
    /// figure of a row is above its first.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut columns = vec!["ns per handler: median (min-max)".to_owned()];
        columns.extend(self.registered.iter().map(|n| count(*n as u64)));
        columns.push("last/first".to_owned());
        let mut table = Table::new("Cost of a handler while so many are registered", &columns);
        let mut rows: Vec<(&str, &str)> = Vec::new();
        for cell in &self.cells {
            let row = (cell.poller.as_str(), cell.operation.as_str());
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
        for (poller, operation) in rows {
            let of_row: Vec<_> = self
                .cells
                .iter()
                .filter(|cell| cell.poller == poller && cell.operation == operation)
                .collect();
            let mut row = vec![format!("{poller}: {operation}")];
            row.extend(self.registered.iter().map(|registered| {
                let cell = of_row.iter().find(|cell| cell.registered == *registered);
                let cost = cell.and_then(|cell| cell.cost_ns);
                cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string())
            }));
            let medians: Vec<f64> = of_row
                .iter()
                .filter_map(|cell| Some(cell.cost_ns?.median))
                .collect();
            row.push(growth(&medians));
            table.row(row);
        }
        table.note("dispatch: the whole iteration with its wait, and the eventfd's write where the handler stays; per handler that ran");
        table.note("epoll keeps its descriptors in a tree: what adding and deleting grow by there and not elsewhere is the kernel's");
        for note in &self.notes {
            table.note(note);
        }
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let cell = |cell: &Cell| {
            json!({
                "poller": cell.poller,
                "operation": cell.operation,
                "registered": cell.registered,
                "cost_ns": cell.cost_ns.map(|cost| cost.json()),
            })
        };
        json!({
            "handlers": self.cells.iter().map(cell).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// The last of a row over its first.
fn growth(medians: &[f64]) -> String {
    match medians {
        [first, .., last] if *first > 0.0 => format!("{}x", number(last / first)),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_a_row_per_operation_with_its_growth() {
        let mut report = Report::new(vec![10, 1000]);
        report.record("epoll", "add", 10, Summary::of(&[100.0]));
        report.record("epoll", "many", 10, None);
        report.record("epoll", "add", 1000, Summary::of(&[150.0]));
        report.record("epoll", "many", 1000, Summary::of(&[7.0]));
        report.note("less than asked for".into());
        let table = report.table().to_string();
        let cells = |name: &str| {
            let mut rows = table.lines().map(|line| line.split('|').map(str::trim));
            let row = rows.find(|row| row.clone().nth(1) == Some(name)).unwrap();
            row.skip(2).collect::<Vec<_>>()
        };
        let add = ["100 (100-100) ±0 %", "150 (150-150) ±0 %", "1.50x", ""];
        assert_eq!(cells("epoll: add"), add);
        let many = ["-", "7.00 (7.00-7.00) ±0 %", "-", ""];
        assert_eq!(cells("epoll: many"), many);
        assert!(table.contains("* less than asked for"));
        assert_eq!(report.json()["handlers"][2]["cost_ns"]["median"], 150.0);
        assert!(report.json()["handlers"][1]["cost_ns"].is_null());
    }
}
