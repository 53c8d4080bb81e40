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
        self.begin(lun, nexus);
        view.refresh();
        if let Some(unit) = view.select(lun)
            && let Some(transfer) = Transfer::any(unit, nexus, CdbWords::new(cdb))
        {
            self.descriptor_sense = unit.word().has_descriptor_sense();
            self.block = unit.block_bytes();
            self.previous_sense = None;
            return self.set_transfer(transfer);
        }
        self.receive_other(view, lun, nexus, &Cdb::new(cdb))
    }

    #[cold]
    fn receive_other(&mut self, view: &View, lun: u16, nexus: Nexus, cdb: &Cdb) -> Phase {
        let kept = self.previous_sense.take();
        self.data.clear();
        let begun = match view.unit(lun) {
            Some(unit) => {
                self.block = unit.block_bytes();
                self.descriptor_sense = unit.word().has_descriptor_sense();
                self.unit = Some(unit.clone());
                self.begin_command(view, unit, nexus, cdb, kept)
            }
            None => {
                self.descriptor_sense = false;
                self.unit = None;
                self.without_unit(view, cdb, kept)
            }
        };
        match begun {
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
    fn without_unit(
        &mut self,
        view: &View,
        cdb: &Cdb,
        kept: Option<Sense>,
    ) -> Result<(Phase, Work), Refusal> {
        let Lookup::Known(entry) = lookup(cdb.opcode(), cdb.service_action(), true) else {
            return Err(Sense::LUN_NOT_SUPPORTED.into());
        };
        let data = &mut self.data;
        let allocation = match cdb.opcode() {
            INQUIRY => {
                cdb.check(entry.mask)?;
                inquiry::without_unit(cdb, data)?
            }
            REPORT_LUNS => {
                cdb.check(entry.mask)?;
                report::luns(cdb, view.luns().map(|(lun, _)| lun), data)?
            }
            REQUEST_SENSE => {
                cdb.check(entry.mask)?;
                let sense = kept.unwrap_or(Sense::LUN_NOT_SUPPORTED);
                data.extend(sense.encode(cdb.bit(1, 0)).as_bytes());
                u64::from(cdb.byte(4))
            }
            _ => return Err(Sense::LUN_NOT_SUPPORTED.into()),
        };
        Ok(data_in(allocation, data))
    }

    fn begin_command(
        &mut self,
        view: &View,
        unit: &Arc<Unit>,
        nexus: Nexus,
        cdb: &Cdb,
        kept: Option<Sense>,
    ) -> Result<(Phase, Work), Refusal> {
        let opcode = cdb.opcode();
        if !matches!(opcode, INQUIRY | REPORT_LUNS | REQUEST_SENSE)
            && unit.word().has_attention(nexus)
            && let Some(attention) = unit.change(|state| state.take_attention(nexus))
        {
            return Err(attention.into());
        }
        let entry = match lookup(opcode, cdb.service_action(), unit.options.thin) {
            Lookup::Known(entry) => entry,
            Lookup::UnknownAction => return Err(Sense::field(1, Some(4)).into()),
            Lookup::UnknownOpcode => return Err(Sense::INVALID_OPCODE.into()),
        };
        cdb.check(entry.mask)?;
        permit(unit, entry, nexus, cdb)?;
        let data = &mut self.data;
        let allocation = match entry.command {
            Command::ReportLuns => {
                let allocation = report::luns(cdb, view.luns().map(|(lun, _)| lun), data)?;
                for (_, unit) in view.luns() {
                    unit.luns_reported(nexus);
                }
                allocation
            }
            Command::RequestSense => {
                let sense = kept.unwrap_or_else(|| condition(unit, nexus));
                data.extend(sense.encode(cdb.bit(1, 0)).as_bytes());
                u64::from(cdb.byte(4))
            }
            command => match start::immediate_data(command, cdb, unit, nexus, data)? {
                Some(allocation) => allocation,
                None => {
                    self.exact = matches!(command, Command::WriteSame | Command::CompareAndWrite);
                    return start::start(command, cdb, unit, nexus);
                }
            },
        };
        Ok(data_in(allocation, data))
    }
}

/// The sense data of REQUEST SENSE when no command has failed.
fn condition(unit: &Unit, nexus: Nexus) -> Sense {
    unit.change(|state| match state.take_attention(nexus) {
        Some(attention) => attention,
        None if state.stopped => Sense::STOPPED,
        None => Sense::NONE,
    })
}

/// Checks reservations, whether the unit is started, and write protection.
fn permit(unit: &Unit, entry: &Entry, nexus: Nexus, cdb: &Cdb) -> Result<(), Refusal> {
    if unit.word().open(nexus, true) {
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
        if access != Access::Reservations && !state.may(nexus, access) {
            return Err(Refusal::Conflict);
        }
        if entry.medium && state.stopped {
            return Err(Sense::STOPPED.into());
        }
        match state.write_protection() {
            Some(sense) if writes => Err(sense.into()),
            _ => Ok(()),
        }
    })
}

/// The data phase of data that is available.
fn data_in(allocation: u64, data: &[u8]) -> (Phase, Work) {
    match allocation.min(data.len() as u64) {
        0 => (Phase::Status, Work::Nothing),
        bytes => (Phase::DataIn(bytes), Work::DataIn),
    }
}
