//! The results of guests, for people and for scripts.

use guest::matrix::{Cell, Outcome, Packages, Reconnection, Verdict};
use serde_json::{Value, json};

/// A table, and what its rows were run with.
pub fn text(packages: &[Packages], outcomes: &[Outcome]) -> String {
    let mut text =
        String::from("\n  QEMU  firmware  device  Linux  result      time  daemon killed\n");
    for outcome in outcomes {
        let (result, note) = match &outcome.verdict {
            Verdict::Passed(passed) => (
                "ok",
                match passed.reconnection {
                    Reconnection::Survived(times) => format!("{times} times"),
                    Reconnection::NotApplicable(reason) => format!("n/a: {reason}"),
                },
            ),
            Verdict::Failed(_) => ("FAILED", String::new()),
            Verdict::NotApplicable(reason) => ("n/a", (*reason).to_owned()),
        };
        let time = match &outcome.verdict {
            Verdict::NotApplicable(_) => String::new(),
            _ => format!("{:.0} s", outcome.took.as_secs_f64()),
        };
        text.push_str(&format!(
            "  {}  {result:<8}  {time:>6}  {note}\n",
            columns(outcome.cell)
        ));
    }
    for outcome in outcomes {
        if let Verdict::Passed(passed) = &outcome.verdict {
            for warning in &passed.daemon_warnings {
                text.push_str(&format!("  {}: {warning}\n", outcome.cell));
            }
        }
    }
    text.push('\n');
    for Packages { of, versions } in packages {
        let versions: Vec<String> = versions
            .iter()
            .map(|(package, version)| format!("{package} {version}"))
            .collect();
        text.push_str(&format!("  {of}: {}\n", versions.join(", ")));
    }
    let count = |wanted: fn(&Verdict) -> bool| {
        outcomes
            .iter()
            .filter(|outcome| wanted(&outcome.verdict))
            .count()
    };
    text.push_str(&format!(
        "\n  {} ok, {} failed, {} not applicable\n",
        count(|verdict| matches!(verdict, Verdict::Passed(_))),
        count(|verdict| matches!(verdict, Verdict::Failed(_))),
        count(|verdict| matches!(verdict, Verdict::NotApplicable(_))),
    ));
    text
}

/// The cells, and which of them cannot exist.
pub fn list(cells: &[Cell]) -> String {
    let row = |cell: &Cell| {
        let note = cell.not_applicable().unwrap_or_default();
        format!("  {}  {note}", columns(*cell))
            .trim_end()
            .to_owned()
            + "\n"
    };
    cells.iter().map(row).collect()
}

/// What went wrong in a cell.
pub fn failure(outcome: &Outcome) -> String {
    match &outcome.verdict {
        Verdict::Failed(why) => format!("\n== {}\n{why}\n", outcome.cell),
        _ => String::new(),
    }
}

/// One object in one line.
pub fn json(packages: &[Packages], outcomes: &[Outcome]) -> String {
    let cells: Vec<Value> = outcomes.iter().map(cell).collect();
    let packages: Vec<Value> = packages
        .iter()
        .map(|Packages { of, versions }| {
            let versions: serde_json::Map<String, Value> = versions
                .iter()
                .map(|(package, version)| (package.clone(), json!(version)))
                .collect();
            json!({"of": of, "packages": versions})
        })
        .collect();
    format!("{}\n", json!({"cells": cells, "versions": packages}))
}

fn cell(outcome: &Outcome) -> Value {
    let cell = outcome.cell;
    let mut value = json!({
        "qemu": cell.qemu.name(),
        "firmware": cell.firmware.name(),
        "device": cell.device.name(),
        "kernel": cell.kernel.name(),
        "seconds": outcome.took.as_secs_f64(),
    });
    let more = match &outcome.verdict {
        Verdict::Passed(passed) => {
            let (kills, reason) = match passed.reconnection {
                Reconnection::Survived(times) => (times, None),
                Reconnection::NotApplicable(reason) => (0, Some(reason)),
            };
            json!({
                "result": "ok",
                "kernel-release": passed.kernel,
                "checksums": passed.sums,
                "daemon-kills": kills,
                "no-reconnection": reason,
                "daemon-warnings": passed.daemon_warnings,
            })
        }
        Verdict::Failed(why) => json!({"result": "failed", "error": why}),
        Verdict::NotApplicable(reason) => json!({"result": "not-applicable", "reason": reason}),
    };
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}

fn columns(cell: Cell) -> String {
    format!(
        "{:<4}  {:<8}  {:<6}  {:<5}",
        cell.qemu.name(),
        cell.firmware.name(),
        cell.device.name(),
        cell.kernel.name()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guest::matrix::Passed;

    use super::*;

    fn outcomes() -> Vec<Outcome> {
        let passed = Verdict::Passed(Passed {
            kernel: "6.1.0".to_owned(),
            sums: 37,
            reconnection: Reconnection::Survived(3),
            daemon_warnings: Vec::new(),
        });
        let verdicts = [
            passed,
            Verdict::Failed("a \"reason\"".to_owned()),
            Verdict::NotApplicable("no driver"),
        ];
        let cells = Cell::all().into_iter();
        let outcome = |(cell, verdict)| Outcome {
            cell,
            verdict,
            took: Duration::from_secs(40),
        };
        cells.zip(verdicts).map(outcome).collect()
    }

    #[test]
    fn a_table_has_a_row_for_each_cell_and_a_count() {
        let text = text(&[], &outcomes());
        for expected in [
            "7.2   seabios   split   6.1    ok          40 s  3 times",
            "FAILED",
            "n/a               no driver",
            "1 ok, 1 failed, 1 not applicable",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(failure(&outcomes()[1]).contains("a \"reason\""));
    }

    #[test]
    fn json_has_the_same_cells_as_the_table() {
        let packages = [Packages {
            of: "QEMU 7.2".to_owned(),
            versions: vec![("seabios".to_owned(), "1".to_owned())],
        }];
        let value: Value = serde_json::from_str(&json(&packages, &outcomes())).unwrap();
        assert_eq!(value["cells"][0]["result"], "ok");
        assert_eq!(value["cells"][0]["daemon-kills"], 3);
        assert_eq!(value["cells"][1]["error"], "a \"reason\"");
        assert_eq!(value["cells"][2]["reason"], "no driver");
        assert_eq!(value["versions"][0]["packages"]["seabios"], "1");
    }
}
