//! Parsing of a command, from its CDB to a [`Phase`].

use std::sync::Arc;

use crate::cdb::{Cdb, INQUIRY};
use crate::commands::{Access, Command, Entry, Lookup, lookup};
use crate::nexus::Nexus;
use crate::refusal::Refusal;
use crate::sense::Sense;
use crate::start;
use crate::step::Phase;
use crate::target::View;
use crate::task::{Task, Work};
use crate::transfer::{CdbWords, Transfer};
use crate::unit::Unit;
use crate::{inquiry, report};

const REQUEST_SENSE: u8 = 0x03;
const REPORT_LUNS: u8 = 0xa0;

impl Task {
    /// Receives a command, and returns its data phase. [`run`](Self::run) must be called in any case.
    ///
    /// `cdb` may be longer than the command. The view is refreshed.
    #[inline]
    pub fn receive(&mut self, view: &mut View, lun: u16, nexus: Nexus, cdb: &[u8]) -> Phase {
        self.clear_for_command(lun, nexus);
        view.refresh();
        if let Some(unit) = view.select_unrefreshed(lun)
            && let Some(transfer) = Transfer::parse_read_or_write(unit, nexus, CdbWords::new(cdb))
        {
            self.descriptor_sense = unit.access_word().has_descriptor_sense();
            self.block_bytes = unit.block_bytes();
            self.previous_sense = None;
            return self.set_transfer(transfer);
        }
        self.receive_other(view, lun, nexus, &Cdb::new(cdb))
    }

    /// Receives a command that is no plain read or write, or may not run without further checks.
    #[cold]
    fn receive_other(&mut self, view: &View, lun: u16, nexus: Nexus, cdb: &Cdb) -> Phase {
        let previous_sense = self.previous_sense.take();
        self.data.clear();
        let started = match view.unit(lun) {
            Some(unit) => {
                self.block_bytes = unit.block_bytes();
                self.descriptor_sense = unit.access_word().has_descriptor_sense();
                self.unit = Some(unit.clone());
                self.begin_command(view, unit, nexus, cdb, previous_sense)
            }
            None => {
                self.descriptor_sense = false;
                self.unit = None;
                self.start_without_unit(view, cdb, previous_sense)
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
                Phase::Status
            }
        }
    }

    /// Executes a command for a number without a unit: some commands succeed nevertheless.
    fn start_without_unit(
        &mut self,
        view: &View,
        cdb: &Cdb,
        previous_sense: Option<Sense>,
    ) -> Result<(Phase, Work), Refusal> {
        let Lookup::Known(entry) = lookup(cdb.opcode(), cdb.service_action(), true) else {
            return Err(Sense::LUN_NOT_SUPPORTED.into());
        };
        let data = &mut self.data;
        let allocation = match cdb.opcode() {
            INQUIRY => {
                cdb.check_mask(entry.mask)?;
                inquiry::inquiry_without_unit(cdb, data)?
            }
            REPORT_LUNS => {
                cdb.check_mask(entry.mask)?;
                report::report_luns(cdb, view.units().map(|(lun, _)| lun), data)?
            }
            REQUEST_SENSE => {
                cdb.check_mask(entry.mask)?;
                let sense = previous_sense.unwrap_or(Sense::LUN_NOT_SUPPORTED);
                data.extend(sense.encode(cdb.bit(1, 0)).as_bytes());
                u64::from(cdb.byte(4))
            }
            _ => return Err(Sense::LUN_NOT_SUPPORTED.into()),
        };
        Ok(data_in_phase(allocation, data))
    }

    /// Checks a command of an existing unit, and starts it. A pending unit attention is reported instead.
    fn begin_command(
        &mut self,
        view: &View,
        unit: &Arc<Unit>,
        nexus: Nexus,
        cdb: &Cdb,
        previous_sense: Option<Sense>,
    ) -> Result<(Phase, Work), Refusal> {
        let opcode = cdb.opcode();
        if !matches!(opcode, INQUIRY | REPORT_LUNS | REQUEST_SENSE)
            && unit.access_word().has_attention(nexus)
            && let Some(attention) = unit.change_state(|state| state.take_attention(nexus))
        {
            return Err(attention.into());
        }
        let entry = match lookup(opcode, cdb.service_action(), unit.options.thin) {
            Lookup::Known(entry) => entry,
            Lookup::UnknownAction => return Err(Sense::invalid_cdb_field(1, Some(4)).into()),
            Lookup::UnknownOpcode => return Err(Sense::INVALID_OPCODE.into()),
        };
        cdb.check_mask(entry.mask)?;
        check_permitted(unit, entry, nexus, cdb)?;
        let data = &mut self.data;
        let allocation = match entry.command {
            Command::ReportLuns => {
                let allocation = report::report_luns(cdb, view.units().map(|(lun, _)| lun), data)?;
                for (_, unit) in view.units() {
                    unit.forget_luns_changed(nexus);
                }
                allocation
            }
            Command::RequestSense => {
                let sense = previous_sense.unwrap_or_else(|| take_condition(unit, nexus));
                data.extend(sense.encode(cdb.bit(1, 0)).as_bytes());
                u64::from(cdb.byte(4))
            }
            command => match start::immediate_data(command, cdb, unit, nexus, data)? {
                Some(allocation) => allocation,
                None => {
                    self.needs_exact_data_len =
                        matches!(command, Command::WriteSame | Command::CompareAndWrite);
                    return start::start_command(command, cdb, unit, nexus);
                }
            },
        };
        Ok(data_in_phase(allocation, data))
    }
}

/// The sense data of REQUEST SENSE when no command has failed.
fn take_condition(unit: &Unit, nexus: Nexus) -> Sense {
    unit.change_state(|state| match state.take_attention(nexus) {
        Some(attention) => attention,
        None if state.stopped => Sense::STOPPED,
        None => Sense::NONE,
    })
}

/// Checks reservations, whether the unit is started, and write protection.
fn check_permitted(unit: &Unit, entry: &Entry, nexus: Nexus, cdb: &Cdb) -> Result<(), Refusal> {
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
    let access = entry.access_of(cdb);
    unit.with_state(|state| {
        if access != Access::Reservations && !state.allows_access(nexus, access) {
            return Err(Refusal::Conflict);
        }
        if entry.needs_medium && state.stopped {
            return Err(Sense::STOPPED.into());
        }
        match state.write_protection() {
            Some(sense) if writes => Err(sense.into()),
            _ => Ok(()),
        }
    })
}

/// The data phase of data that is available.
fn data_in_phase(allocation: u64, data: &[u8]) -> (Phase, Work) {
    match allocation.min(data.len() as u64) {
        0 => (Phase::Status, Work::Nothing),
        bytes => (Phase::DataIn(bytes), Work::DataIn),
    }
}
