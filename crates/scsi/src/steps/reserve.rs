//! PERSISTENT RESERVE OUT: plans the change, saves it if it is persistent, and applies it then; at last
//! ends the tasks of other initiators that PREEMPT AND ABORT has removed. One change at a time.

use block::DiskCall;
use engine::Errno;

use super::{NextStep, StepContext};
use crate::cdb::Cdb;
use crate::nexus::NexusNumber;
use crate::persistent_out::{self, PlannedReservationChange};
use crate::sense::Sense;
use crate::task_mutex::MutexKind;
use crate::unit::Unit;

/// The stage of the command.
enum ReserveOutStage {
    /// Another change may be in progress.
    New,
    /// It is this command's turn.
    Entered,
    /// The change is being saved, and is not applied yet.
    Saving(PlannedReservationChange),
    /// The change is applied; tasks of other initiators may have to end.
    Finishing,
}

pub(crate) struct PersistentReserveOut {
    cdb: Cdb,
    parameter_list: Vec<u8>,
    nexus: NexusNumber,
    stage: ReserveOutStage,
}

impl PersistentReserveOut {
    /// A PERSISTENT RESERVE OUT of this initiator.
    pub fn new(cdb: Cdb, parameter_list: &[u8], nexus: NexusNumber) -> Self {
        PersistentReserveOut {
            cdb,
            parameter_list: parameter_list.to_vec(),
            nexus,
            stage: ReserveOutStage::New,
        }
    }

    /// Plans the change when it is this command's turn, has it saved if it must be stored, and applies it.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        match std::mem::replace(&mut self.stage, ReserveOutStage::Finishing) {
            ReserveOutStage::New => {
                self.stage = ReserveOutStage::Entered;
                if io.lock_or_enqueue(MutexKind::Reservations) {
                    self.next(io)
                } else {
                    NextStep::Wait
                }
            }
            ReserveOutStage::Entered => {
                let planned = persistent_out::plan_reservation_change(
                    &self.cdb,
                    io.unit,
                    self.nexus,
                    &self.parameter_list,
                );
                match planned {
                    Err(refusal) => NextStep::Refused(refusal),
                    Ok(change)
                        if change.must_be_stored()
                            && io.unit.options.reservation_store.is_some() =>
                    {
                        self.stage = ReserveOutStage::Saving(change);
                        NextStep::Call
                    }
                    Ok(change) => self.apply_and_unlock(io, change),
                }
            }
            ReserveOutStage::Saving(change) => self.apply_and_unlock(io, change),
            ReserveOutStage::Finishing => NextStep::Finished,
        }
    }

    /// Applies the change, unlocks the mutex for the next change, and ends the tasks of initiators that were preempted.
    fn apply_and_unlock(
        &mut self,
        io: &mut StepContext<'_>,
        change: PlannedReservationChange,
    ) -> NextStep {
        let lost = change.apply(io.unit, self.nexus);
        // The end of the tasks need not delay other changes.
        io.unlock_mutex();
        if lost.is_empty() {
            return NextStep::Finished;
        }
        NextStep::EndTasksOf(lost)
    }

    /// The call that saves the change.
    pub fn requested_disk_call(&self, unit: &Unit) -> Option<DiskCall> {
        let ReserveOutStage::Saving(change) = &self.stage else {
            return None;
        };
        let reservation_store = unit.options.reservation_store.clone()?;
        let text = change.text_to_store();
        Some(DiskCall::Other(Box::new(move || {
            reservation_store.save(&text)
        })))
    }

    /// Applies a change that was saved, although the command was cancelled meanwhile.
    pub fn apply_saved_change(&mut self, unit: &Unit) {
        if let ReserveOutStage::Saving(change) =
            std::mem::replace(&mut self.stage, ReserveOutStage::Finishing)
        {
            change.apply(unit, self.nexus);
        }
    }

    /// The sense data when the change could not be saved, and was not applied.
    pub fn sense_of_failed_save(&self, errno: Errno) -> Sense {
        let no_space = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG);
        match persistent_out::no_room_sense(&self.cdb) {
            Some(sense) if no_space => sense,
            _ => Sense::TARGET_FAILURE,
        }
    }
}
