//! Prepares commands of a unit after the checks in `receive.rs`: appends reply data that is available at once, or returns the
//! data phase and the work that is left; and executes parameter lists.

use std::sync::Arc;

use block::Op;

use crate::bytes::{be16, be32, be64};
use crate::cdb::{BlockRange, Cdb};
use crate::commands::Command;
use crate::nexus::{NexusNumber, TransportId};
use crate::refusal::RefusalStatus;
use crate::sense::Sense;
use crate::step::DataPhase;
use crate::steps::{
    AfterFlush, CompareAndWrite, Extent, MultiStepCommand, OrWrite, PersistentReserveOut,
    ReadIntoShortBuffer, Unmap, Verify, VerifyComparison, WriteSame,
};
use crate::task::{RemainingWork, Task};
use crate::unit::Unit;
use crate::vpd::{MAX_UNMAP_RANGES, max_compare_blocks, max_unmap_blocks};
use crate::{capacity, inquiry, mode_select, persistent_in, persistent_out, report};

/// UNMAP's list: a header, and ranges.
const UNMAP_HEADER_BYTES: usize = 8;
const UNMAP_RANGE_BYTES: usize = 16;

/// Executes a command whose reply is available at once: appends that to `data`, and returns the allocation length. `None`:
/// it is another command.
pub(crate) fn try_append_immediate_reply(
    command: Command,
    cdb: &Cdb,
    unit: &Unit,
    nexus: NexusNumber,
    data: &mut Vec<u8>,
) -> Result<Option<u64>, Sense> {
    let thin = unit.options.thin;
    Ok(Some(match command {
        Command::Inquiry => {
            let port = unit
                .read_state(|state| state.ports_of_nexus(nexus).map_or(1, |ports| ports.target));
            inquiry::inquiry(cdb, unit, port, data)?
        }
        Command::ReadCapacity10 => capacity::read_capacity_10(unit, data),
        Command::ReadCapacity16 => capacity::read_capacity_16(cdb, unit, data),
        Command::LogSense => report::log_sense(cdb, data)?,
        Command::ReportOpcodes => report::report_opcodes(cdb, thin, data)?,
        Command::ReportTaskManagement => {
            let parallel = unit.read_state(|state| {
                let ports = state.ports_of_nexus(nexus);
                ports.is_some_and(|ports| matches!(ports.initiator, TransportId::Parallel { .. }))
            });
            report::report_task_management(cdb, parallel, data)?
        }
        Command::PersistentIn => {
            if is_legacy_reserved_by_another(unit, nexus) {
                return Ok(None);
            }
            persistent_in::persistent_in(cdb, unit, data)
        }
        _ => return Ok(None),
    }))
}

/// Whether another initiator holds RESERVE(6) or (10), which excludes commands whatever their service action.
fn is_legacy_reserved_by_another(unit: &Unit, nexus: NexusNumber) -> bool {
    unit.read_state(|state| state.legacy_holder.is_some_and(|holder| holder != nexus))
}

type PrepareResult = Result<(DataPhase, RemainingWork), RefusalStatus>;

const DONE: (DataPhase, RemainingWork) = (DataPhase::Status, RemainingWork::Nothing);

/// Executes a command that changes only the unit, or returns the data phase and the work of any other.
pub(crate) fn execute_or_prepare(
    command: Command,
    cdb: &Cdb,
    unit: &Arc<Unit>,
    nexus: NexusNumber,
) -> PrepareResult {
    match command {
        Command::Read | Command::Write => {
            prepare_read_or_write(command == Command::Write, cdb, unit)
        }
        Command::Verify | Command::WriteAndVerify => {
            prepare_verify(command == Command::WriteAndVerify, cdb, unit)
        }
        Command::WriteSame => prepare_write_same(cdb, unit),
        Command::CompareAndWrite => prepare_compare_and_write(cdb, unit),
        Command::OrWrite => {
            let extent = checked_transfer_extent(cdb, unit)?;
            let steps = OrWrite::new(extent, effective_fua(cdb, unit));
            Ok(prepare_unless_empty(
                DataPhase::DataOut(extent.len),
                MultiStepCommand::OrWrite(steps),
            ))
        }
        Command::PreFetch => {
            unit.checked_byte_range(cdb.block_range())?;
            Ok(DONE)
        }
        Command::Synchronize => {
            unit.checked_byte_range(cdb.block_range())?;
            // IMMED is ignored: the status comes after the flush, which is allowed.
            Ok(prepare_flush(AfterFlush::Nothing))
        }
        Command::StartStop => start_unit_or_prepare_stop(cdb, unit),
        Command::SendDiagnostic => prepare_self_test_read(cdb, unit),
        Command::Reserve | Command::Release => {
            reserve_or_release_legacy(command == Command::Reserve, unit, nexus)
        }
        Command::Unmap => {
            let len = u64::from(cdb.be16(7));
            if (1..UNMAP_HEADER_BYTES as u64).contains(&len) {
                return Err(Sense::PARAMETER_LIST_LENGTH.into());
            }
            Ok(prepare_parameter_list(cdb, len))
        }
        Command::GetLbaStatus => Ok(capacity::prepare_lba_status(cdb, unit)?),
        Command::ModeSelect => Ok(prepare_parameter_list(
            cdb,
            mode_select::checked_parameter_list_len(cdb)?,
        )),
        Command::PersistentOut if !is_legacy_reserved_by_another(unit, nexus) => Ok(
            prepare_parameter_list(cdb, persistent_out::checked_parameter_list_len(cdb)?),
        ),
        Command::PersistentIn | Command::PersistentOut => Err(RefusalStatus::Conflict),
        // No effect, or handled above.
        _ => Ok(DONE),
    }
}

/// Prepares a command with a parameter list of `len` bytes, which is executed when it has come. An empty list has no effect.
fn prepare_parameter_list(cdb: &Cdb, len: u64) -> (DataPhase, RemainingWork) {
    if len == 0 {
        return DONE;
    }
    (DataPhase::DataOut(len), RemainingWork::ParameterList(*cdb))
}

/// Prepares a flush without a data phase, and the action after it.
fn prepare_flush(then: AfterFlush) -> (DataPhase, RemainingWork) {
    let flush = MultiStepCommand::flush_then(then);
    (DataPhase::Status, RemainingWork::MultiStepCommand(flush))
}

/// Prepares a command of several steps, unless it moves no bytes: then there is nothing to do.
fn prepare_unless_empty(phase: DataPhase, steps: MultiStepCommand) -> (DataPhase, RemainingWork) {
    match phase {
        DataPhase::DataIn(0) | DataPhase::DataOut(0) => DONE,
        phase => (phase, RemainingWork::MultiStepCommand(steps)),
    }
}

/// Whether a write must be stable when it completes: the command or the write cache mode demands it.
fn effective_fua(cdb: &Cdb, unit: &Unit) -> bool {
    cdb.has_fua() || unit.access_word().is_write_through()
}

/// The range of a command that moves all of its data, limited to the largest transfer.
fn checked_transfer_extent(cdb: &Cdb, unit: &Unit) -> Result<Extent, Sense> {
    let range = cdb.block_range();
    let (offset, len) = unit.checked_byte_range(range)?;
    if range.blocks > unit.max_transfer_blocks() {
        return Err(Sense::invalid_cdb_field(cdb.block_count_offset(), None));
    }
    Ok(Extent { offset, len })
}

/// READ and WRITE. A read with FUA flushes first, so that the data comes from the medium.
fn prepare_read_or_write(write: bool, cdb: &Cdb, unit: &Unit) -> PrepareResult {
    let extent = checked_transfer_extent(cdb, unit)?;
    // READ(6) and WRITE(6) have no FUA: the bit is one of the address.
    let fua_requested = cdb.opcode() >> 5 != 0 && cdb.has_fua();
    if extent.len == 0 {
        return Ok(DONE);
    }
    if write {
        let fua = fua_requested || unit.access_word().is_write_through();
        let op = Op::Write;
        return Ok((
            DataPhase::DataOut(extent.len),
            RemainingWork::Transfer { op, fua, extent },
        ));
    }
    let work = if fua_requested {
        let read = ReadIntoShortBuffer::new(extent, unit.block_bytes());
        RemainingWork::MultiStepCommand(MultiStepCommand::flush_then(AfterFlush::Read(read)))
    } else {
        let op = Op::Read;
        RemainingWork::Transfer {
            op,
            fua: false,
            extent,
        }
    };
    Ok((DataPhase::DataIn(extent.len), work))
}

/// VERIFY, and WRITE AND VERIFY (`write`): what is compared depends on BYTCHK.
fn prepare_verify(write: bool, cdb: &Cdb, unit: &Unit) -> PrepareResult {
    let block = unit.block_bytes();
    let how = match cdb.byte(1) >> 1 & 3 {
        0 => VerifyComparison::Medium,
        1 => VerifyComparison::Data,
        3 => VerifyComparison::Block,
        _ => return Err(Sense::invalid_cdb_field(1, Some(2)).into()),
    };
    let (offset, len) = unit.checked_byte_range(cdb.block_range())?;
    let mut extent = Extent { offset, len };
    let bytes = match how {
        _ if write => {
            extent = checked_transfer_extent(cdb, unit)?;
            len
        }
        VerifyComparison::Medium => 0,
        VerifyComparison::Data => {
            extent = checked_transfer_extent(cdb, unit)?;
            len
        }
        VerifyComparison::Block => len.min(u64::from(block)),
    };
    let phase = match bytes {
        0 => DataPhase::Status,
        bytes => DataPhase::DataOut(bytes),
    };
    if len == 0 {
        return Ok(DONE);
    }
    let steps = Verify::new(extent, how, block, write);
    Ok((
        phase,
        RemainingWork::MultiStepCommand(MultiStepCommand::Verify(steps)),
    ))
}

/// WRITE SAME, with one block of data or none (NDOB).
fn prepare_write_same(cdb: &Cdb, unit: &Unit) -> PrepareResult {
    let (unmap, no_data) = (cdb.bit(1, 3), cdb.bit(1, 0));
    if unmap && !unit.options.thin {
        return Err(Sense::invalid_cdb_field(1, Some(3)).into());
    }
    let range = cdb.block_range();
    if range.blocks == 0 {
        // WSNZ.
        return Err(Sense::invalid_cdb_field(cdb.block_count_offset(), None).into());
    }
    let (offset, len) = unit.checked_byte_range(range)?;
    let block = unit.block_bytes();
    let steps = WriteSame::new(
        Extent { offset, len },
        block,
        no_data,
        unmap,
        unit.access_word().is_write_through(),
    );
    let phase = if no_data {
        DataPhase::Status
    } else {
        DataPhase::DataOut(u64::from(block))
    };
    Ok((
        phase,
        RemainingWork::MultiStepCommand(MultiStepCommand::WriteSame(steps)),
    ))
}

/// COMPARE AND WRITE: the data is that to compare, and that to write.
fn prepare_compare_and_write(cdb: &Cdb, unit: &Unit) -> PrepareResult {
    let blocks = cdb.byte(13);
    let (offset, len) = unit.checked_byte_range(BlockRange {
        lba: cdb.be64(2),
        blocks: blocks.into(),
    })?;
    if blocks > max_compare_blocks(unit) {
        return Err(Sense::invalid_cdb_field(13, None).into());
    }
    let steps = CompareAndWrite::new(Extent { offset, len }, effective_fua(cdb, unit));
    Ok(prepare_unless_empty(
        DataPhase::DataOut(2 * len),
        MultiStepCommand::CompareAndWrite(steps),
    ))
}

/// START STOP UNIT. Before a stop the cache is flushed, unless the command forbids it.
fn start_unit_or_prepare_stop(cdb: &Cdb, unit: &Unit) -> PrepareResult {
    let (start, no_flush) = (cdb.bit(4, 0), cdb.bit(4, 2));
    if start {
        unit.change_state_and_access_word(|state| state.stopped = false);
        return Ok(DONE);
    }
    if no_flush {
        unit.change_state_and_access_word(|state| state.stopped = true);
        return Ok(DONE);
    }
    Ok(prepare_flush(AfterFlush::Stop))
}

/// SEND DIAGNOSTIC has one test, the default one, which reads a block.
fn prepare_self_test_read(cdb: &Cdb, unit: &Unit) -> PrepareResult {
    if !cdb.bit(1, 2) {
        return Ok(DONE);
    }
    let (offset, len) = unit.checked_byte_range(BlockRange { lba: 0, blocks: 1 })?;
    let steps = Verify::new(
        Extent { offset, len },
        VerifyComparison::Medium,
        unit.block_bytes(),
        false,
    );
    Ok((
        DataPhase::Status,
        RemainingWork::MultiStepCommand(MultiStepCommand::Verify(steps)),
    ))
}

/// RESERVE and RELEASE, which conflict with persistent registrations.
fn reserve_or_release_legacy(reserve: bool, unit: &Unit, nexus: NexusNumber) -> PrepareResult {
    unit.change_state_and_access_word(|state| {
        if !state.reservations.registrations.is_empty() {
            return Err(RefusalStatus::Conflict);
        }
        let another = state.legacy_holder.is_some_and(|holder| holder != nexus);
        match (reserve, another) {
            (true, true) => return Err(RefusalStatus::Conflict),
            (true, false) => state.legacy_holder = Some(nexus),
            (false, true) => {}
            (false, false) => state.legacy_holder = None,
        }
        Ok(DONE)
    })
}

impl Task {
    /// Executes the parameter list in `data`. Returns the remaining steps.
    pub(crate) fn execute_parameter_list(
        &self,
        cdb: &Cdb,
    ) -> Result<Option<MultiStepCommand>, RefusalStatus> {
        let (Some(unit), list) = (&self.unit, self.data.as_slice()) else {
            return Err(Sense::TARGET_FAILURE.into());
        };
        match cdb.opcode() {
            0x15 | 0x55 => {
                let after_flush = mode_select::mode_select(cdb, unit, self.nexus, list)?;
                Ok(after_flush.map(MultiStepCommand::flush_then))
            }
            0x42 => Ok(Some(MultiStepCommand::Unmap(parse_unmap_list(unit, list)?))),
            _ => Ok(Some(MultiStepCommand::PersistentReserveOut(
                PersistentReserveOut::new(*cdb, list, self.nexus),
            ))),
        }
    }
}

/// Parses the ranges of UNMAP, whose sum is limited.
fn parse_unmap_list(unit: &Unit, list: &[u8]) -> Result<Unmap, Sense> {
    let len = usize::from(be16(list, 2));
    // An incomplete range at the end is ignored.
    let count = len / UNMAP_RANGE_BYTES;
    if count > MAX_UNMAP_RANGES {
        return Err(Sense::invalid_parameter(2, None));
    }
    let ranges = list
        .get(UNMAP_HEADER_BYTES..UNMAP_HEADER_BYTES + count * UNMAP_RANGE_BYTES)
        .ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let mut all = Vec::with_capacity(count);
    let mut blocks = 0;
    for (index, range) in ranges.chunks(UNMAP_RANGE_BYTES).enumerate() {
        let range = BlockRange {
            lba: be64(range, 0),
            blocks: u64::from(be32(range, 8)),
        };
        blocks += range.blocks;
        if blocks > max_unmap_blocks(unit) {
            let at = UNMAP_HEADER_BYTES + index * UNMAP_RANGE_BYTES + 8;
            return Err(Sense::invalid_parameter(at, None));
        }
        let (offset, len) = unit.checked_byte_range(range)?;
        all.push(Extent { offset, len });
    }
    Ok(Unmap::new(all))
}
