//! PERSISTENT RESERVE OUT: what is to change is decided, saved if it is to be kept, and only then so; at last
//! the tasks of those who lost their registration end. One change at a time.

use block::DiskCall;
use engine::Errno;

use super::{Io, Next};
use crate::cdb::Cdb;
use crate::exclusive::Line;
use crate::nexus::Nexus;
use crate::persistent_out::{self, Change};
use crate::sense::Sense;
use crate::unit::Unit;

/// How far it is.
enum Stage {
    /// Others may be changing something.
    Comes,
    /// It is its turn.
    Decides,
    /// Nothing has changed yet.
    Saves(Change),
    /// Nothing is left to be done but the tasks of others.
    Settles,
}

pub(crate) struct Reserve {
    cdb: Cdb,
    list: Vec<u8>,
    nexus: Nexus,
    stage: Stage,
}

impl Reserve {
    pub fn new(cdb: Cdb, list: &[u8], nexus: Nexus) -> Self {
        Reserve {
            cdb,
            list: list.to_vec(),
            nexus,
            stage: Stage::Comes,
        }
    }

    pub fn next(&mut self, io: &mut Io<'_>) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Settles) {
            Stage::Comes => {
                self.stage = Stage::Decides;
                if io.enter(Line::Reservations) {
                    self.next(io)
                } else {
                    Next::Wait
                }
            }
            Stage::Decides => {
                let decided = persistent_out::decide(&self.cdb, io.unit, self.nexus, &self.list);
                match decided {
                    Err(refusal) => Next::Refused(refusal),
                    Ok(change)
                        if change.is_kept() && io.unit.options.reservation_store.is_some() =>
                    {
                        self.stage = Stage::Saves(change);
                        Next::Call
                    }
                    Ok(change) => self.carry_out(io, change),
                }
            }
            Stage::Saves(change) => self.carry_out(io, change),
            Stage::Settles => Next::Finished,
        }
    }

    fn carry_out(&mut self, io: &mut Io<'_>, change: Change) -> Next {
        let lost = change.carry_out(io.unit, self.nexus);
        // Whose tasks end need not keep others from changing reservations.
        io.leave();
        if lost.is_empty() {
            return Next::Finished;
        }
        Next::Settle(lost)
    }

    /// What is to be saved now.
    pub fn call(&self, unit: &Unit) -> Option<DiskCall> {
        let Stage::Saves(change) = &self.stage else {
            return None;
        };
        let reservation_store = unit.options.reservation_store.clone()?;
        let text = change.text();
        Some(DiskCall::Other(Box::new(move || {
            reservation_store.save(&text)
        })))
    }

    /// It was saved, and nobody wants to hear of it any more: so it is, nevertheless.
    pub fn saved(&mut self, unit: &Unit) {
        if let Stage::Saves(change) = std::mem::replace(&mut self.stage, Stage::Settles) {
            change.carry_out(unit, self.nexus);
        }
    }

    /// What an initiator hears of it when nothing could be saved, and nothing has changed.
    pub fn not_saved(&self, errno: Errno) -> Sense {
        let no_space = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG);
        match persistent_out::adds(&self.cdb) {
            Some(sense) if no_space => sense,
            _ => Sense::TARGET_FAILURE,
        }
    }
}
