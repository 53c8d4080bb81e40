//! PERSISTENT RESERVE OUT: plans the change, saves it if it is persistent, and applies it then; at last
//! ends the tasks of initiators that have lost their registration. One change at a time.

use block::DiskCall;
use engine::Errno;

use super::{Next, StepContext};
use crate::cdb::Cdb;
use crate::exclusive::Exclusion;
use crate::nexus::Nexus;
use crate::persistent_out::{self, Change};
use crate::sense::Sense;
use crate::unit::Unit;

/// The stage of the command.
enum Stage {
    /// Another change may be in progress.
    New,
    /// It is this command's turn.
    Entered,
    /// The change is being saved, and is not applied yet.
    Saving(Change),
    /// The change is applied; tasks of other initiators may have to end.
    Finishing,
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
            stage: Stage::New,
        }
    }

    pub fn next(&mut self, io: &mut StepContext<'_>) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Finishing) {
            Stage::New => {
                self.stage = Stage::Entered;
                if io.enter(Exclusion::Reservations) {
                    self.next(io)
                } else {
                    Next::Wait
                }
            }
            Stage::Entered => {
                let planned = persistent_out::plan(&self.cdb, io.unit, self.nexus, &self.list);
                match planned {
                    Err(refusal) => Next::Refused(refusal),
                    Ok(change)
                        if change.is_kept() && io.unit.options.reservation_store.is_some() =>
                    {
                        self.stage = Stage::Saving(change);
                        Next::Call
                    }
                    Ok(change) => self.apply_change(io, change),
                }
            }
            Stage::Saving(change) => self.apply_change(io, change),
            Stage::Finishing => Next::Finished,
        }
    }

    fn apply_change(&mut self, io: &mut StepContext<'_>, change: Change) -> Next {
        let lost = change.apply(io.unit, self.nexus);
        // The end of the tasks need not delay other changes.
        io.leave();
        if lost.is_empty() {
            return Next::Finished;
        }
        Next::Settle(lost)
    }

    /// The call that saves the change.
    pub fn call(&self, unit: &Unit) -> Option<DiskCall> {
        let Stage::Saving(change) = &self.stage else {
            return None;
        };
        let reservation_store = unit.options.reservation_store.clone()?;
        let text = change.text();
        Some(DiskCall::Other(Box::new(move || {
            reservation_store.save(&text)
        })))
    }

    /// Applies a change that was saved, although the command was cancelled meanwhile.
    pub fn saved(&mut self, unit: &Unit) {
        if let Stage::Saving(change) = std::mem::replace(&mut self.stage, Stage::Finishing) {
            change.apply(unit, self.nexus);
        }
    }

    /// The sense data when the change could not be saved, and was not applied.
    pub fn not_saved(&self, errno: Errno) -> Sense {
        let no_space = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG);
        match persistent_out::no_room_error(&self.cdb) {
            Some(sense) if no_space => sense,
            _ => Sense::TARGET_FAILURE,
        }
    }
}
