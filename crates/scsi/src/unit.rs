//! A logical unit, shared by all threads: options, size, access word, and the state behind its lock, which events and
//! commands change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use block::Geometry;

use crate::access_word::{AccessWord, AtomicAccessWord};
use crate::cdb::BlockRange;
use crate::identity::{IdentityError, UnitIdentity};
use crate::locked_state::LockedState;
use crate::mode_pages::ModeParameters;
use crate::nexus::{NexusNumber, NexusPorts};
use crate::reservation_store::ReservationStore;
use crate::reservations::Reservations;
use crate::sense::Sense;
use crate::task_mutex::TaskMutexes;
use crate::unit_attention::code;

/// Largest logical block.
const MAX_BLOCK_BYTES: u32 = 32_768;

/// Most bytes of one read or write.
pub const MAX_TRANSFER_BYTES: u64 = 32 << 20;

/// Options of a unit.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Its names.
    pub identity: UnitIdentity,
    /// Bytes of a logical block, a power of two.
    pub logical_block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Every write is stable when it completes, unless an initiator turns the write cache on.
    pub write_through: bool,
    /// Thin provisioning: initiators may deallocate blocks.
    pub thin: bool,
    /// Rotations per minute; 1: solid state; 0: unknown.
    pub rotation_rate: u16,
    /// Stores reservations across restarts, if initiators set APTPL.
    pub reservation_store: Option<Arc<dyn ReservationStore>>,
}

impl Default for UnitOptions {
    fn default() -> Self {
        UnitOptions {
            identity: UnitIdentity::default(),
            logical_block_size: 512,
            read_only: false,
            write_through: false,
            thin: true,
            rotation_rate: 1,
            reservation_store: None,
        }
    }
}

/// Error of a unit's options.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UnitError {
    /// The block size is no power of two, or out of range.
    #[error("logical-block-size={0}: must be a power of two from 512 to {MAX_BLOCK_BYTES}")]
    BlockSize(u32),
    /// The disk is smaller than a block.
    #[error(
        "a disk of {size} bytes has no block of {block} bytes: give it a larger size, or smaller blocks"
    )]
    Empty {
        /// Bytes of the disk.
        size: u64,
        /// Bytes of a block.
        block: u32,
    },
    /// A name is invalid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Kinds of resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusOrUnitReset {
    /// A reset of the bus.
    Bus,
    /// LOGICAL UNIT RESET, or TARGET RESET.
    Unit,
}

/// A logical unit.
///
/// Initiators must be [attached](Self::attach_initiator_and_start) before their first command. The first 16
/// [nexuses](NexusNumber) have a bit of their own each in the word that reads and writes check; others share one, and may
/// be checked in full because of another.
pub struct Unit {
    pub(crate) options: UnitOptions,
    pub(crate) geometry: Geometry,
    pub(crate) task_mutexes: TaskMutexes,
    access_word: AtomicAccessWord,
    /// Blocks that initiators see.
    pub(crate) blocks: AtomicU64,
    block_shift: u32,
    state: Mutex<LockedState>,
}

impl Unit {
    /// A unit for a node with this geometry.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn new(options: UnitOptions, geometry: Geometry) -> Result<Self, UnitError> {
        let block = options.logical_block_size;
        if !block.is_power_of_two() || !(512..=MAX_BLOCK_BYTES).contains(&block) {
            return Err(UnitError::BlockSize(block));
        }
        options.identity.check_names_and_naa()?;
        let size = geometry.size;
        let blocks = size / u64::from(block);
        if blocks == 0 {
            return Err(UnitError::Empty { size, block });
        }
        let unit = Unit {
            geometry,
            task_mutexes: TaskMutexes::default(),
            access_word: AtomicAccessWord::default(),
            blocks: AtomicU64::new(blocks),
            block_shift: block.trailing_zeros(),
            state: Mutex::new(LockedState::new(options.read_only, options.write_through)),
            options,
        };
        unit.change_state_and_access_word(|_| ());
        Ok(unit)
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &UnitOptions {
        &self.options
    }

    /// Bytes of a logical block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.options.logical_block_size
    }

    /// Blocks that initiators see.
    #[must_use]
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn block_shift(&self) -> u32 {
        self.block_shift
    }

    #[inline]
    pub(crate) fn access_word(&self) -> AccessWord {
        self.access_word.load()
    }

    /// Sets the node's size in bytes, and raises a unit attention for all initiators. True if the capacity has
    /// changed.
    pub fn resize(&self, size: u64) -> bool {
        let blocks = size >> self.block_shift;
        let changed = self.blocks.swap(blocks, Ordering::Relaxed) != blocks;
        if changed {
            self.change_state_and_access_word(|state| {
                state.raise_attention_for_all(code::CAPACITY_CHANGED)
            });
        }
        changed
    }

    /// Turns the write cache on again: it could not be flushed when it was turned off.
    pub(crate) fn turn_write_cache_on(&self) {
        self.change_state_and_access_word(|state| {
            state.modes.write_cache = true;
            state.raise_attention_for_all(code::MODE_PARAMETERS_CHANGED);
        });
    }

    /// Sets whether writes are refused.
    pub fn set_read_only(&self, read_only: bool) {
        self.change_state_and_access_word(|state| {
            if state.read_only != read_only {
                state.read_only = read_only;
                state.raise_attention_for_all(code::MODE_PARAMETERS_CHANGED);
            }
        });
    }

    /// Attaches an initiator, to which power on is reported first. A unit that was stopped is
    /// started, since firmware does not start it.
    pub fn attach_initiator_and_start(&self, nexus: NexusNumber, ports: NexusPorts) {
        self.change_state_and_access_word(|state| {
            state.add_or_replace_initiator(nexus, ports);
            state.stopped = false;
            state.raise_attention(nexus, code::POWER_ON_OR_RESET);
        });
    }

    /// Detaches an initiator, and releases its RESERVE. Persistent reservations stay.
    pub fn detach_initiator_and_release_reserve(&self, nexus: NexusNumber) {
        self.change_state_and_access_word(|state| state.remove_initiator_and_its_reserve(nexus));
    }

    /// I_T nexus loss: releases the initiator's RESERVE, as
    /// [`detach_initiator_and_release_reserve`](Self::detach_initiator_and_release_reserve) does, and reports the loss to it.
    pub fn on_nexus_lost(&self, nexus: NexusNumber) {
        self.change_state_and_access_word(|state| {
            state.release_legacy_reservation(nexus);
            state.raise_attention(nexus, code::NEXUS_LOSS);
        });
    }

    /// Resets the state except persistent reservations, and reports that to all initiators. The
    /// adapters cancel their tasks before.
    pub fn reset(&self, reset: BusOrUnitReset) {
        self.change_state_and_access_word(|state| {
            state.apply_unit_reset();
            state.raise_attention_for_all(match reset {
                BusOrUnitReset::Bus => code::BUS_RESET,
                // The code for a reset of any kind, as other targets report it.
                BusOrUnitReset::Unit => code::POWER_ON_OR_RESET,
            });
        });
    }

    /// Reports to an initiator that another has cancelled its tasks (CLEAR TASK SET), since they have no
    /// status.
    pub fn raise_commands_cleared_attention(&self, nexus: NexusNumber) {
        self.change_state_and_access_word(|state| {
            state.raise_attention(nexus, code::COMMANDS_CLEARED)
        });
    }

    /// Reports to all initiators that units of the target were added or removed.
    pub(crate) fn raise_luns_changed_attention(&self) {
        self.change_state_and_access_word(|state| {
            state.raise_attention_for_all(code::LUNS_CHANGED)
        });
    }

    /// Removes that unit attention of an initiator, which has listed the units.
    pub(crate) fn remove_luns_changed_attention(&self, nexus: NexusNumber) {
        self.change_state_and_access_word(|state| {
            state.remove_attention(nexus, code::LUNS_CHANGED)
        });
    }

    /// Restores reservations from a [`ReservationStore`], before the first initiator is attached.
    ///
    /// # Errors
    /// [`ReservationTextError`](crate::ReservationTextError) if the text cannot be parsed.
    pub fn restore_reservations(&self, text: &str) -> Result<(), crate::ReservationTextError> {
        let persistent = Reservations::from_text(text)?;
        self.change_state_and_access_word(|state| state.reservations = persistent);
        Ok(())
    }

    /// Reads the state behind the lock.
    pub(crate) fn read_state<R>(&self, read: impl FnOnce(&LockedState) -> R) -> R {
        read(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state behind the lock, and recomputes the access word.
    pub(crate) fn change_state_and_access_word<R>(
        &self,
        change: impl FnOnce(&mut LockedState) -> R,
    ) -> R {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        self.access_word.store(state.compute_access_word());
        result
    }

    /// Offset and length in bytes of a range of blocks, which must all exist.
    #[inline]
    pub(crate) fn checked_byte_range(&self, range: BlockRange) -> Result<(u64, u64), Sense> {
        match range.lba.checked_add(range.blocks) {
            Some(end) if end <= self.blocks() => Ok((
                range.lba << self.block_shift,
                range.blocks << self.block_shift,
            )),
            _ => Err(Sense::LBA_OUT_OF_RANGE),
        }
    }

    /// Blocks that one transfer may have.
    pub(crate) fn max_transfer_blocks(&self) -> u64 {
        MAX_TRANSFER_BYTES >> self.block_shift
    }

    /// Bytes that one discard, or one request for zeroes, may have: whole blocks.
    pub(crate) fn max_discard_or_zeroes_bytes(&self) -> u64 {
        let most = self.geometry.discard.max_bytes >> self.block_shift;
        most.max(1) << self.block_shift
    }

    pub(crate) fn default_modes(&self) -> ModeParameters {
        ModeParameters::new(self.options.write_through)
    }
}
