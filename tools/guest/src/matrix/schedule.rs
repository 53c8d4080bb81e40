//! A schedule for the cells: two at a time, as each guest keeps a processor busy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::cell::Cell;
use super::outcome::{Outcome, Verdict};
use super::run_cell::run_cell;
use crate::progress::Board;
use crate::server::Program;

const GUESTS_AT_A_TIME: usize = 2;

/// Runs the cells and shows how that goes on standard error. The outcomes are in the cells' order.
pub fn run(program: &Program, cells: &[Cell]) -> Vec<Outcome> {
    let board = Board::start(cells.len());
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..GUESTS_AT_A_TIME {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run_cell(program, *cell, &board.task(cell.to_string()));
                    board.done(&summary(&outcome));
                    let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                    outcomes.push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|outcome| cells.iter().position(|cell| *cell == outcome.cell));
    outcomes
}

fn summary(outcome: &Outcome) -> String {
    let verdict = match &outcome.verdict {
        Verdict::Passed(_) => "ok",
        Verdict::Failed(_) => "FAILED",
        Verdict::NotApplicable(_) => "not applicable",
    };
    format!(
        "{}: {verdict} ({:.0} s)",
        outcome.cell,
        outcome.took.as_secs_f64()
    )
}
