//! What a command asks for: from its CDB to a [`Phase`].

use std::sync::Arc;

use block::Op;

use crate::bytes::{be16, be32, be64};
use crate::cdb::{Cdb, INQUIRY, Range};
use crate::commands::{Access, Command, Entry, Lookup, lookup};
use crate::nexus::Nexus;
use crate::refusal::Refusal;
use crate::sense::Sense;
use crate::start;
use crate::step::Phase;
use crate::steps::Extent;
use crate::target::View;
use crate::task::{Task, Work};
use crate::unit::{MAX_TRANSFER_BYTES, Unit};
use crate::{inquiry, report};

const REQUEST_SENSE: u8 = 0x03;
const REPORT_LUNS: u8 = 0xa0;

/// A plain read or write: its blocks, whether it writes, and FUA. `None`: it is something else, or has bits that need a closer look.
#[inline]
fn plain_transfer(cdb: &[u8]) -> Option<(Range, bool, bool)> {
    let write = match cdb.first()? {
        0x28 | 0x88 => false,
        0x2a | 0x8a => true,
        _ => return None,
    };
    let (lba, blocks, group, control) = if cdb[0] < 0x80 {
        let cdb: &[u8; 10] = cdb.first_chunk()?;
        (be32(cdb, 2).into(), be16(cdb, 7).into(), cdb[6], cdb[9])
    } else {
        let cdb: &[u8; 16] = cdb.first_chunk()?;
        (be64(cdb, 2), be32(cdb, 10).into(), cdb[14], cdb[15])
    };
    let flags = *cdb.get(1)?;
    let fua = flags & 0x08 != 0;
    let plain = flags & !0x18 == 0 && group & !0x1f == 0 && control == 0 && (write || !fua);
    plain.then_some((Range { lba, blocks }, write, fua))
}

impl Task {
    /// Takes a command. What it needs of the initiator is said by the answer; [`run`](Self::run) carries it out,
    /// whatever the answer is.
    ///
    /// `cdb` may be longer than the command is. The view is refreshed.
    #[inline]
    pub fn receive(&mut self, view: &mut View, lun: u16, nexus: Nexus, cdb: &[u8]) -> Phase {
        self.begin(lun, nexus);
        view.refresh();
        if let Some(unit) = view.unit(lun)
            && let Some((range, write, fua)) = plain_transfer(cdb)
        {
            let word = unit.word();
            if word.open(nexus, write)
                && range.blocks != 0
                && let Ok((offset, len)) = unit.extent(range)
                && len <= MAX_TRANSFER_BYTES
            {
                self.descriptor_sense = word.has_descriptor_sense();
                self.block = unit.block_bytes();
                self.kept_sense = None;
                let (op, fua) = if write {
                    (Op::Write, fua || word.is_write_through())
                } else {
                    (Op::Read, false)
                };
                let extent = Extent { offset, len };
                self.work = Work::Transfer { op, fua, extent };
                self.phase = if write {
                    Phase::DataOut(len)
                } else {
                    Phase::DataIn(len)
                };
                return self.phase;
            }
        }
        self.receive_other(view, lun, nexus, &Cdb::new(cdb))
    }

    #[cold]
    fn receive_other(&mut self, view: &View, lun: u16, nexus: Nexus, cdb: &Cdb) -> Phase {
        let kept = self.kept_sense.take();
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

    /// There is nobody of that number; some commands are answered nevertheless.
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
                inquiry::nobody(cdb, data)?
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
        Ok(answer(allocation, data))
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
            command => match start::answer(command, cdb, unit, nexus, data)? {
                Some(allocation) => allocation,
                None => {
                    self.exact = matches!(command, Command::WriteSame | Command::CompareAndWrite);
                    return start::start(command, cdb, unit, nexus);
                }
            },
        };
        Ok(answer(allocation, data))
    }
}

/// What REQUEST SENSE says when no command has failed.
fn condition(unit: &Unit, nexus: Nexus) -> Sense {
    unit.change(|state| match state.take_attention(nexus) {
        Some(attention) => attention,
        None if state.stopped => Sense::STOPPED,
        None => Sense::NONE,
    })
}

/// Reservations, whether the unit is started, and whether anybody may write.
fn permit(unit: &Unit, entry: &Entry, nexus: Nexus, cdb: &Cdb) -> Result<(), Refusal> {
    if unit.word().open(nexus, true) {
        // Who may write now may do anything: a flush needs no lock.
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
    unit.look(|state| {
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

/// The data is there.
fn answer(allocation: u64, data: &[u8]) -> (Phase, Work) {
    match allocation.min(data.len() as u64) {
        0 => (Phase::Status, Work::Nothing),
        bytes => (Phase::DataIn(bytes), Work::Answer),
    }
}
