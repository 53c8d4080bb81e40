//! Targets and whether they were reached, as a table and as JSON.

use serde_json::{Value, json};

use super::definitions::{Baseline, Measure, Target};
use crate::compare::ratio_text;
use crate::contenders::{Contender, Figure, Row};
use crate::idle::Idle;
use crate::load::Measured;
use crate::procfs;
use crate::run::describe;
use crate::stats::{Summary, count, number};
use crate::storage::BackingOption;
use crate::table::Table;

/// One target, measured.
#[derive(Clone, Debug)]
pub struct Outcome {
    load: String,
    measure: &'static str,
    against: String,
    at_least: f64,
    /// Of the figure itself: ours and theirs.
    figures: Option<(Summary, Summary)>,
    ratio: Option<Summary>,
    saturated: &'static str,
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    /// In order of the table.
    pub outcomes: Vec<Outcome>,
    /// Servers that had nothing to do.
    pub idle: Vec<Idle>,
}

impl Target {
    pub(super) fn outcome(&self, row: &Row, contenders: &[Contender]) -> Outcome {
        let against = contenders.iter().position(|contender| match self.against {
            Baseline::Peer => matches!(contender, Contender::Peer(_)),
            Baseline::Raw => matches!(contender, Contender::Raw(_)),
            Baseline::Alone => *contender == Contender::Ours,
        });
        let (figure, name): (Figure, _) = match self.measure {
            Measure::Iops => (|measured| Some(measured.iops()), "IOPS"),
            Measure::Cpu => (Measured::server_cpu_ns, "CPU ns per I/O"),
        };
        let storage = match self.group.storage() {
            BackingOption::Null => "null",
            BackingOption::Tmpfs => "file on tmpfs",
            BackingOption::File | BackingOption::At(_) => "file on the disk",
            BackingOption::Rbd(_) => "Ceph RBD",
            BackingOption::Nbd(_) => "NBD",
        };
        let neighbours = match contenders.first() {
            Some(crowd @ Contender::OursInACrowd { .. }) => format!(", {crowd}"),
            _ => String::new(),
        };
        let ratio = against.and_then(|other| match self.measure {
            Measure::Iops => row.ratio(0, other, figure),
            // How many times less.
            Measure::Cpu => row.ratio(other, 0, figure),
        });
        let saturated = row.measured.first().and_then(|ours| ours.first());
        Outcome {
            load: format!("{storage}, {}{neighbours}", describe(&row.load)),
            measure: name,
            against: against.map_or_else(
                || "qemu-storage-daemon, which is not installed".to_owned(),
                |other| contenders[other].to_string(),
            ),
            at_least: self.at_least,
            figures: against
                .and_then(|other| Some((row.summary(0, figure)?, row.summary(other, figure)?))),
            ratio,
            saturated: saturated.map_or("", |ours| ours.saturated().who()),
        }
    }
}

impl Outcome {
    /// Whether the ratio is what was wanted; `None` where it was not measured.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        self.ratio.map(|ratio| ratio.median >= self.at_least)
    }
}

fn met_text(met: Option<bool>) -> String {
    match met {
        Some(true) => "met",
        Some(false) => "NOT MET",
        None => "not measured",
    }
    .to_owned()
}

impl Report {
    /// The table for people.
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = [
            "load",
            "measure",
            "ours",
            "against",
            "theirs",
            "at least",
            "ratio",
            "",
            "saturated",
        ]
        .map(str::to_owned);
        let mut table = Table::new("What must hold", &columns);
        for outcome in &self.outcomes {
            let figure = |which: fn(&(Summary, Summary)) -> Summary| {
                let figures = outcome.figures.as_ref();
                figures.map_or_else(|| "-".to_owned(), |both| number(which(both).median))
            };
            table.row([
                outcome.load.clone(),
                outcome.measure.to_owned(),
                figure(|both| both.0),
                outcome.against.clone(),
                figure(|both| both.1),
                format!("{}x", outcome.at_least),
                outcome
                    .ratio
                    .map_or_else(|| "-".to_owned(), |ratio| ratio_text(&ratio)),
                met_text(outcome.met()),
                outcome.saturated.to_owned(),
            ]);
        }
        for idle in &self.idle {
            let used = procfs::total(&idle.threads);
            let quiet = used.voluntary_switches == 0 && used.cpu_ns == 0;
            table.row([
                format!("idle, {} queues on {}", count(idle.queues), idle.backing),
                "wake-ups; CPU us".to_owned(),
                format!("{}; {}", used.voluntary_switches, used.cpu_ns / 1000),
                String::new(),
                String::new(),
                "0".to_owned(),
                String::new(),
                met_text(Some(quiet)),
            ]);
        }
        table.note("ratio: of IOPS ours over theirs, of CPU theirs over ours; in pairs of repetitions: median (lowest-highest)");
        table.note("server and client on one processor each, except for the mixed load; the host's own load where the servers are");
        table.note("saturated: who could not have done more, when ours was loaded");
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let outcome = |outcome: &Outcome| {
            json!({
                "load": outcome.load,
                "measure": outcome.measure,
                "against": outcome.against,
                "at_least": outcome.at_least,
                "ours": outcome.figures.map(|both| both.0.json()),
                "theirs": outcome.figures.map(|both| both.1.json()),
                "ratio": outcome.ratio.map(|ratio| ratio.json()),
                "met": outcome.met(),
                "saturated": outcome.saturated,
            })
        };
        let idle = |idle: &Idle| {
            let used = procfs::total(&idle.threads);
            json!({
                "backing": idle.backing,
                "queues": idle.queues,
                "watched_ns": idle.watched_ns,
                "wake_ups": used.voluntary_switches,
                "cpu_ns": used.cpu_ns,
            })
        };
        json!({
            "targets": self.outcomes.iter().map(outcome).collect::<Vec<_>>(),
            "idle": self.idle.iter().map(idle).collect::<Vec<_>>(),
        })
    }
}
