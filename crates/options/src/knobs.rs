//! Test knobs: keys that begin with `x-`, each of which puts one mechanism into a position that
//! nobody wants, so that `blockplane bench` can measure what the mechanism is worth.
//!
//! They are no interface: in no help, suggested by no error, and free to go with any version.
//! `docs/experiments.md` says what each does.

use crate::{
    Problem,
    fields::{Fields, Key},
};

/// What every knob's name begins with.
pub(crate) const PREFIX: &str = "x-";

/// The knobs of an iothread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IothreadKnobs {
    /// `x-first-batch`: most requests in a call while the disk has nothing to do; 0: as many as else. Default:
    /// the engine's.
    pub first_batch: Option<u32>,
    /// `x-admit-budget`: requests taken from one queue in one iteration, at most, rounded up to turns of
    /// 64; `None`: one turn.
    pub admit_budget: Option<u32>,
}

pub(crate) const IOTHREAD_KEYS: &[Key] = &[
    Key {
        name: "x-first-batch",
        value: "REQUESTS",
        help: "most requests per call while the disk has nothing to do, 0 = as else (default: the engine's)",
    },
    Key {
        name: "x-admit-budget",
        value: "REQUESTS",
        help: "take so many requests from a queue at once, in turns of 64 (default 64)",
    },
];

/// Takes the knobs of an iothread.
pub(crate) fn iothread(fields: &mut Fields) -> Result<IothreadKnobs, Problem> {
    Ok(IothreadKnobs {
        first_batch: fields.number_u32("x-first-batch", 0, 65_536)?,
        admit_budget: fields.number_u32("x-admit-budget", 1, 65_536)?,
    })
}
