//! Receives a command for a task: checks its CDB, unit attentions, reservations and write protection, starts it, and returns
//! its data [`DataPhase`].

use std::sync::Arc;

use crate::cdb::{Cdb, INQUIRY};
use crate::commands::{AccessWhenReserved, Command, CommandEntry, CommandLookup, find_command};
use crate::nexus::NexusNumber;
use crate::plain_transfer::{CdbWords, PlainTransfer};
use crate::prepare;
use crate::refusal::RefusalStatus;
use crate::sense::Sense;
use crate::step::DataPhase;
use crate::steps::{AfterFlush, MultiStepCommand};
use crate::target::TargetView;
use crate::task::{RemainingWork, Task};
use crate::unit::Unit;
use crate::{inquiry, mode_sense, report};

const REQUEST_SENSE: u8 = 0x03;
const REPORT_LUNS: u8 = 0xa0;

impl Task {
    /// Receives a command, and returns its data phase. [`run`](Self::run) must be called in any case.
    ///
    /// `cdb` may be longer than the command. The view is refreshed.
    #[inline]
    pub fn receive(
        &mut self,
        view: &mut TargetView,
        lun: u16,
        nexus: NexusNumber,
        cdb: &[u8],
    ) -> DataPhase {
        self.clear_for_command(lun, nexus);
        view.refresh();
        if let Some(unit) = view.select_without_refresh(lun)
            && let Some(transfer) =
                PlainTransfer::try_parse_read_or_write(unit, nexus, CdbWords::new(cdb))
        {
            self.descriptor_sense = unit.access_word().has_descriptor_sense();
            self.block_bytes = unit.block_bytes();
            self.previous_sense = None;
            if transfer.write && !transfer.fua {
                self.unit = Some(unit.clone());
            }
            return self.set_transfer(transfer);
        }
        self.receive_slow_path(view, lun, nexus, &Cdb::new(cdb))
    }

    /// Receives a command that is no plain read or write, or may not run without further checks.
    #[cold]
    fn receive_slow_path(
        &mut self,
        view: &TargetView,
        lun: u16,
        nexus: NexusNumber,
        cdb: &Cdb,
    ) -> DataPhase {
        let previous_sense = self.previous_sense.take();
        self.data.clear();
        let started = match view.unit(lun) {
            Some(unit) => {
                self.block_bytes = unit.block_bytes();
                self.descriptor_sense = unit.access_word().has_descriptor_sense();
                self.unit = Some(unit.clone());
                self.check_and_prepare(view, unit, nexus, cdb, previous_sense)
            }
            None => {
                self.descriptor_sense = false;
                self.unit = None;
                self.answer_without_unit(view, cdb, previous_sense)
            }
        };
        match started {
            Ok((phase, work)) => {
                self.phase = phase;
                self.work = work;
                phase
            }
            Err(refusal) => {
                self.refuse(refusal);
                DataPhase::Status
            }
        }
    }

    /// Executes a command for a number without a unit: some commands succeed nevertheless.
    fn answer_without_unit(
        &mut self,
        view: &TargetView,
        cdb: &Cdb,
        previous_sense: Option<Sense>,
    ) -> Result<(DataPhase, RemainingWork), RefusalStatus> {
        let CommandLookup::Known(entry) = find_command(cdb.opcode(), cdb.service_action(), true)
        else {
            return Err(Sense::LUN_NOT_SUPPORTED.into());
        };
        let data = &mut self.data;
        let allocation = match cdb.opcode() {
            INQUIRY => {
                cdb.check_len_and_unused_bits(entry.mask)?;
                inquiry::inquiry_without_unit(cdb, data)?
            }
            REPORT_LUNS => {
                cdb.check_len_and_unused_bits(entry.mask)?;
                report::report_luns(cdb, view.units().map(|(lun, _)| lun), data)?
            }
            REQUEST_SENSE => {
                cdb.check_len_and_unused_bits(entry.mask)?;
                let sense = previous_sense.unwrap_or(Sense::LUN_NOT_SUPPORTED);
                data.extend(sense.encode(cdb.bit(1, 0)).as_bytes());
                u64::from(cdb.byte(4))
            }
            _ => return Err(Sense::LUN_NOT_SUPPORTED.into()),
        };
        Ok(reply_phase_and_work(allocation, data))
    }

    /// Checks a command of an existing unit, and starts it. A pending unit attention is reported instead.
    fn check_and_prepare(
        &mut self,
        view: &TargetView,
        unit: &Arc<Unit>,
        nexus: NexusNumber,
        cdb: &Cdb,
        previous_sense: Option<Sense>,
    ) -> Result<(DataPhase, RemainingWork), RefusalStatus> {
        let opcode = cdb.opcode();
        if !matches!(opcode, INQUIRY | REPORT_LUNS | REQUEST_SENSE)
            && unit.access_word().may_have_attention(nexus)
            && let Some(attention) =
                unit.change_state_and_access_word(|state| state.take_attention(nexus))
        {
            return Err(attention.into());
        }
        let entry = match find_command(opcode, cdb.service_action(), unit.options.thin) {
            CommandLookup::Known(entry) => entry,
            CommandLookup::UnknownAction => return Err(Sense::invalid_cdb_field(1, Some(4)).into()),
            CommandLookup::UnknownOpcode => return Err(Sense::INVALID_OPCODE.into()),
        };
        cdb.check_len_and_unused_bits(entry.mask)?;
        check_permitted(unit, entry, nexus, cdb)?;
        let data = &mut self.data;
        let allocation = match entry.command {
            Command::ReportLuns => {
                let allocation = report::report_luns(cdb, view.units().map(|(lun, _)| lun), data)?;
                for (_, unit) in view.units() {
                    unit.remove_luns_changed_attention(nexus);
                }
                allocation
            }
            Command::RequestSense => {
                let sense =
                    previous_sense.unwrap_or_else(|| take_attention_or_stopped_sense(unit, nexus));
                data.extend(sense.encode(cdb.bit(1, 0)).as_bytes());
                u64::from(cdb.byte(4))
            }
            Command::ModeSense => {
                let (allocation, has_cache) = mode_sense::mode_sense(cdb, unit, data)?;
                let reply = reply_phase_and_work(allocation, data);
                // An initiator that reads that the cache is off takes all earlier writes as stable. Those before a reset, which
                // restores the initial mode, may be cached.
                return Ok(match reply {
                    (phase, RemainingWork::DataIn) if !has_cache => {
                        let flush = MultiStepCommand::flush_then(AfterFlush::ReplyCacheIsOff);
                        (phase, RemainingWork::MultiStepCommand(flush))
                    }
                    reply => reply,
                });
            }
            command => {
                match prepare::try_append_immediate_reply(command, cdb, unit, nexus, data)? {
                    Some(allocation) => allocation,
                    None => {
                        self.needs_exact_data_len =
                            matches!(command, Command::WriteSame | Command::CompareAndWrite);
                        return prepare::execute_or_prepare(command, cdb, unit, nexus);
                    }
                }
            }
        };
        Ok(reply_phase_and_work(allocation, data))
    }
}

/// The sense data of REQUEST SENSE when no command has failed: takes a pending unit attention, or reports a stopped unit.
fn take_attention_or_stopped_sense(unit: &Unit, nexus: NexusNumber) -> Sense {
    unit.change_state_and_access_word(|state| match state.take_attention(nexus) {
        Some(attention) => attention,
        None if state.stopped => Sense::STOPPED,
        None => Sense::NONE,
    })
}

/// Checks reservations, whether the unit is started, and write protection.
fn check_permitted(
    unit: &Unit,
    entry: &CommandEntry,
    nexus: NexusNumber,
    cdb: &Cdb,
) -> Result<(), RefusalStatus> {
    if unit.access_word().allows_unchecked(nexus, true) {
        // An initiator that may write may do anything: a flush needs no lock.
        return Ok(());
    }
    let writes = matches!(
        entry.command,
        Command::Write
            | Command::WriteAndVerify
            | Command::WriteSame
            | Command::Unmap
            | Command::CompareAndWrite
            | Command::OrWrite
    );
    let access = entry.access_for_cdb(cdb);
    unit.read_state(|state| {
        if access != AccessWhenReserved::Reservations && !state.allows_access(nexus, access) {
            return Err(RefusalStatus::Conflict);
        }
        if entry.needs_medium && state.stopped {
            return Err(Sense::STOPPED.into());
        }
        match state.write_protection_error() {
            Some(sense) if writes => Err(sense.into()),
            _ => Ok(()),
        }
    })
}

/// The data phase of a reply that is available.
fn reply_phase_and_work(allocation: u64, data: &[u8]) -> (DataPhase, RemainingWork) {
    match allocation.min(data.len() as u64) {
        0 => (DataPhase::Status, RemainingWork::Nothing),
        bytes => (DataPhase::DataIn(bytes), RemainingWork::DataIn),
    }
}
