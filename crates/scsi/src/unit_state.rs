//! Saves and restores the state of a unit for a live upgrade: all that is neither in its options nor on its disk.

use std::sync::atomic::Ordering;

use crate::nexus::NexusNumber;
use crate::reservation_text::ReservationTextError;
use crate::reservations::Reservations;
use crate::unit::Unit;

/// State of a unit that initiators can observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// Blocks that initiators see.
    pub blocks: u64,
    /// START STOP UNIT has stopped it.
    pub stopped: bool,
    /// WCE, as set by MODE SELECT.
    pub write_cache: bool,
    /// D_SENSE.
    pub descriptor_sense: bool,
    /// SWP.
    pub software_write_protect: bool,
    /// Pending unit attentions, the oldest first, as additional sense codes.
    pub attentions: Vec<(NexusNumber, Vec<u16>)>,
    /// The initiator that has reserved it by RESERVE.
    pub reserved: Option<NexusNumber>,
    /// Persistent reservations, in the form of a [`ReservationStore`](crate::ReservationStore).
    pub persistent: String,
    /// APTPL: the reservations survive a restart.
    pub persists: bool,
    /// PRGENERATION.
    pub generation: u32,
}

impl Unit {
    /// The state of the unit. No command may be in flight.
    #[must_use]
    pub fn save_state(&self) -> UnitState {
        let blocks = self.blocks();
        self.read_state(|state| UnitState {
            blocks,
            stopped: state.stopped,
            write_cache: state.modes.write_cache,
            descriptor_sense: state.modes.descriptor_sense,
            software_write_protect: state.modes.software_write_protect,
            attentions: state.all_pending_attentions(),
            reserved: state.legacy_holder,
            persistent: state.reservations.all_to_text(),
            persists: state.reservations.persist,
            generation: state.reservations.generation,
        })
    }

    /// Restores the state of another unit. The same initiators must be attached, and have sent no command.
    ///
    /// # Errors
    /// [`ReservationTextError`] when its reservations cannot be understood.
    pub fn restore_state(&self, handed: &UnitState) -> Result<(), ReservationTextError> {
        let persistent = Reservations {
            persist: handed.persists,
            generation: handed.generation,
            ..Reservations::from_text(&handed.persistent)?
        };
        self.blocks.store(handed.blocks, Ordering::Relaxed);
        self.change_state_and_access_word(|state| {
            state.stopped = handed.stopped;
            state.modes.write_cache = handed.write_cache;
            state.modes.descriptor_sense = handed.descriptor_sense;
            state.modes.software_write_protect = handed.software_write_protect;
            state.replace_all_attentions(&handed.attentions);
            state.legacy_holder = handed.reserved;
            state.reservations = persistent;
        });
        Ok(())
    }
}
