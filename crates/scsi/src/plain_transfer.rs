//! Parses plain reads and writes, which need the CDB and one word of the unit, and become one request to the node.
//!
//! An adapter whose initiators provide buffers with the command can execute them without a [`Task`]: it takes a
//! [`PlainTransfer`] from its [`TargetView`], and passes it to a task only if it is cancelled or fails.

use block::Op;

use crate::cdb::BlockRange;
use crate::nexus::NexusNumber;
use crate::step::DataPhase;
use crate::steps::Extent;
use crate::target::TargetView;
use crate::task::{RemainingWork, Task};
use crate::unit::{MAX_TRANSFER_BYTES, Unit};

/// A read or write that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainTransfer {
    /// It is a write.
    pub write: bool,
    /// The written data must be stable when it completes.
    pub fua: bool,
    /// Its first byte on the node.
    pub offset: u64,
    /// Bytes, not 0.
    pub len: u64,
}

/// The first 16 bytes of a CDB, padded with zeroes, as two little-endian words, so that fields are parsed without memory accesses.
#[derive(Clone, Copy, Debug)]
pub struct CdbWords(pub u64, pub u64);

impl CdbWords {
    /// The words of a CDB of any length.
    #[inline]
    #[must_use]
    pub fn new(cdb: &[u8]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            let from = cdb.get(at..).unwrap_or_default();
            let len = from.len().min(8);
            word[..len].copy_from_slice(&from[..len]);
            u64::from_le_bytes(word)
        };
        CdbWords(word(0), word(8))
    }
}

const READ_10: u64 = 0x28;
const READ_16: u64 = 0x88;
/// The bit by which the operation code of a write differs from that of a read.
const WRITE: u64 = 0x02;
/// The operation code, and all of the second byte but DPO and FUA.
const CODE_AND_FLAGS: u64 = 0xe7ff;
const FUA: u64 = 0x08 << 8;
/// Reserved bits beside the group number, and CONTROL, in either word.
const GROUP_10: u64 = 0xe0 << 48;
const CONTROL_10: u64 = 0xff << 8;
const GROUP_AND_CONTROL_16: u64 = 0xffe0 << 48;

/// The blocks of a plain read, or write. `None`: it is another command, or has bits that need further checks.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of words"
)]
fn parse_plain_range<const WRITES: bool>(CdbWords(low, high): CdbWords) -> Option<BlockRange> {
    // A read with FUA flushes first, and so is not plain.
    let (mask, code) = match WRITES {
        true => (CODE_AND_FLAGS, WRITE),
        false => (CODE_AND_FLAGS | FUA, 0),
    };
    if low & (mask | GROUP_10) == READ_10 | code && high & CONTROL_10 == 0 {
        Some(BlockRange {
            lba: u64::from(((low >> 16) as u32).swap_bytes()),
            blocks: low >> 56 << 8 | high & 0xff,
        })
    } else if low & mask == READ_16 | code && high & GROUP_AND_CONTROL_16 == 0 {
        Some(BlockRange {
            lba: (low >> 16 | high << 48).swap_bytes(),
            blocks: u64::from(((high >> 16) as u32).swap_bytes()),
        })
    } else {
        None
    }
}

impl PlainTransfer {
    /// Parses a plain read, or write. `None`: it is another command, or needs further checks.
    #[inline(always)]
    pub(crate) fn try_parse<const WRITES: bool>(
        unit: &Unit,
        nexus: NexusNumber,
        cdb: CdbWords,
    ) -> Option<Self> {
        let range = parse_plain_range::<WRITES>(cdb)?;
        let word = unit.access_word();
        if !word.allows_unchecked(nexus, WRITES) || range.blocks == 0 {
            return None;
        }
        let (offset, len) = unit.checked_byte_range(range).ok()?;
        (len <= MAX_TRANSFER_BYTES).then_some(PlainTransfer {
            write: WRITES,
            fua: WRITES && (cdb.0 & FUA != 0 || word.is_write_through()),
            offset,
            len,
        })
    }

    /// Parses a plain read or write, as [`try_parse`](Self::try_parse) does.
    pub(crate) fn try_parse_read_or_write(
        unit: &Unit,
        nexus: NexusNumber,
        cdb: CdbWords,
    ) -> Option<Self> {
        Self::try_parse::<false>(unit, nexus, cdb)
            .or_else(|| Self::try_parse::<true>(unit, nexus, cdb))
    }

    /// The operation of the request.
    #[must_use]
    #[inline(always)]
    pub fn op(self) -> Op {
        if self.write { Op::Write } else { Op::Read }
    }
}

impl TargetView {
    /// Whether the write cache of the [selected](Self::refresh_and_select_unit) unit may be off: a write that was not submitted
    /// with FUA must not be reported as completed without a [`Task`] then.
    #[inline(always)]
    #[must_use]
    pub fn may_be_write_through(&self) -> bool {
        let selected = self.selected_unit();
        selected.is_none_or(|unit| unit.access_word().is_write_through())
    }

    /// Parses a command for the [selected](Self::refresh_and_select_unit) unit, if it is a plain read, or write, that
    /// needs no further checks.
    #[inline(always)]
    #[must_use]
    pub fn try_parse_transfer<const WRITES: bool>(
        &self,
        nexus: NexusNumber,
        cdb: CdbWords,
    ) -> Option<PlainTransfer> {
        PlainTransfer::try_parse::<WRITES>(self.selected_unit()?, nexus, cdb)
    }
}

impl Task {
    /// Takes over a [`PlainTransfer`] whose request is in flight, as if this task had [submitted](Self::run) it.
    #[cold]
    pub fn adopt_in_flight_transfer(
        &mut self,
        view: &TargetView,
        lun: u16,
        nexus: NexusNumber,
        transfer: PlainTransfer,
    ) {
        self.clear_for_command(lun, nexus);
        self.previous_sense = None;
        // The unit may have been removed.
        self.unit = view.unit(lun).cloned();
        self.descriptor_sense = self
            .unit
            .as_ref()
            .is_some_and(|unit| unit.access_word().has_descriptor_sense());
        self.set_transfer(transfer);
        self.mark_submitted_by_adapter();
    }

    /// Sets the task's work and phase.
    #[inline]
    pub(crate) fn set_transfer(&mut self, transfer: PlainTransfer) -> DataPhase {
        let PlainTransfer {
            write,
            fua,
            offset,
            len,
        } = transfer;
        let extent = Extent { offset, len };
        let op = transfer.op();
        self.work = RemainingWork::Transfer { op, fua, extent };
        self.phase = if write {
            DataPhase::DataOut(len)
        } else {
            DataPhase::DataIn(len)
        };
        self.phase
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::Cdb;
    use crate::commands::{CommandLookup, find_command};

    /// The range of a command as parsed by the table of commands.
    fn checked(bytes: &[u8]) -> Option<(bool, BlockRange)> {
        let cdb = Cdb::new(bytes);
        let write = match cdb.opcode() {
            0x28 | 0x88 => false,
            0x2a | 0x8a => true,
            _ => return None,
        };
        let CommandLookup::Known(entry) = find_command(cdb.opcode(), cdb.service_action(), true)
        else {
            panic!("a disk reads and writes");
        };
        cdb.check_len_and_unused_bits(entry.mask).ok()?;
        (write || !cdb.has_fua()).then(|| (write, cdb.block_range()))
    }

    #[test]
    fn plain_commands_are_parsed_as_by_the_table_of_commands() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005) + 1;
            seed >> 33
        };
        let choice = |random: u64, of: usize| usize::try_from(random).unwrap() % of;
        let mut plain_ones = 0;
        for _ in 0..200_000 {
            let words = CdbWords(random() << 32 | random(), random() << 32 | random());
            let mut bytes = [words.0.to_le_bytes(), words.1.to_le_bytes()].concat();
            bytes[0] = [0x28, 0x2a, 0x88, 0x8a, 0x2e, 0x29, 0xa8, bytes[0]][choice(random(), 8)];
            // Most have no reserved bits set, and some have one.
            let last = if bytes[0] < 0x80 { 9 } else { 15 };
            let group = if bytes[0] < 0x80 { 6 } else { 14 };
            bytes[1] &= 0x18;
            bytes[group] &= 0x1f;
            bytes[last] = 0;
            if random() % 2 == 0 {
                bytes[[1, group, last][choice(random(), 3)]] |= 1 << (random() % 8);
            }
            let words = CdbWords::new(&bytes);
            let found = parse_plain_range::<false>(words).map(|range| (false, range));
            let found =
                found.or_else(|| parse_plain_range::<true>(words).map(|range| (true, range)));
            assert_eq!(found, checked(&bytes), "{bytes:02x?}");
            plain_ones += u32::from(found.is_some());
        }
        assert!(plain_ones > 20_000, "{plain_ones}");
    }

    #[test]
    fn a_short_cdb_is_padded_with_zeroes() {
        let CdbWords(low, high) = CdbWords::new(&[0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!(low, 0x0500_0403_0201_0028);
        assert_eq!(high, 6);
        let CdbWords(low, high) = CdbWords::new(&[0x12, 1]);
        assert_eq!((low, high), (0x0112, 0));
    }
}
