//! The state of a unit behind its lock, which changes seldom: attached initiators and their unit attentions, mode parameters,
//! reservations, and whether it is stopped or read-only.

use crate::access_word::AccessWord;
use crate::commands::AccessWhenReserved;
use crate::mode_pages::ModeParameters;
use crate::nexus::{NexusNumber, NexusPorts};
use crate::reservations::{AttentionList, Reservations};
use crate::sense::Sense;
use crate::unit_attention::PendingAttentions;

/// An attached initiator.
struct AttachedInitiator {
    nexus: NexusNumber,
    ports: NexusPorts,
    pending_attentions: PendingAttentions,
}

/// Everything behind the lock.
pub(crate) struct LockedState {
    initiators: Vec<AttachedInitiator>,
    write_through: bool,
    pub read_only: bool,
    pub modes: ModeParameters,
    pub stopped: bool,
    /// The initiator that has reserved the unit by RESERVE(6) or (10).
    pub legacy_holder: Option<NexusNumber>,
    pub reservations: Reservations,
}

impl LockedState {
    /// The state of a unit without initiators.
    pub fn new(read_only: bool, write_through: bool) -> Self {
        LockedState {
            initiators: Vec::new(),
            write_through,
            read_only,
            modes: ModeParameters::new(write_through),
            stopped: false,
            legacy_holder: None,
            reservations: Reservations::default(),
        }
    }

    /// The word for reads and writes that corresponds to this state.
    pub fn compute_access_word(&self) -> AccessWord {
        let mut word = AccessWord::default();
        word.add_read_only_if(self.write_protection_error().is_some());
        word.add_stopped_if(self.stopped);
        word.add_write_through_if(!self.modes.write_cache);
        word.add_descriptor_sense_if(self.modes.descriptor_sense);
        for initiator in &self.initiators {
            word.add_attention_if(initiator.nexus, !initiator.pending_attentions.is_empty());
        }
        // Initiators that are not attached.
        let unattached = AccessWord::nexus_of_each_bit().filter(|slot| {
            let mut known = self.initiators.iter();
            !known.any(|initiator| initiator.nexus.bit_index() == slot.bit_index())
        });
        let known = self.initiators.iter().map(|initiator| initiator.nexus);
        for nexus in known.chain(unattached) {
            let may = |access| self.allows_access(nexus, access);
            word.add_blocked_accesses(
                nexus,
                !may(AccessWhenReserved::Reads),
                !may(AccessWhenReserved::Writes),
            );
        }
        word
    }

    /// Attaches an initiator, without pending attentions.
    pub fn add_or_replace_initiator(&mut self, nexus: NexusNumber, ports: NexusPorts) {
        self.initiators.retain(|initiator| initiator.nexus != nexus);
        self.initiators.push(AttachedInitiator {
            nexus,
            ports,
            pending_attentions: PendingAttentions::default(),
        });
    }

    /// Detaches an initiator, which loses its RESERVE and its attentions.
    pub fn remove_initiator_and_its_reserve(&mut self, nexus: NexusNumber) {
        self.release_legacy_reservation(nexus);
        self.initiators.retain(|initiator| initiator.nexus != nexus);
    }

    /// Resets what a reset of the unit resets. Persistent reservations and attentions stay.
    pub fn apply_unit_reset(&mut self) {
        self.legacy_holder = None;
        self.stopped = false;
        self.modes = ModeParameters::new(self.write_through);
    }

    /// Ends the RESERVE(6) or (10) of an initiator, if it is the holder.
    pub fn release_legacy_reservation(&mut self, nexus: NexusNumber) {
        if self.legacy_holder == Some(nexus) {
            self.legacy_holder = None;
        }
    }

    /// The ports of an attached initiator.
    pub fn ports_of_nexus(&self, nexus: NexusNumber) -> Option<&NexusPorts> {
        let found = self
            .initiators
            .iter()
            .find(|initiator| initiator.nexus == nexus);
        found.map(|initiator| &initiator.ports)
    }

    /// The initiators behind these ports.
    pub fn nexuses_of_ports(&self, ports: &[NexusPorts]) -> Vec<NexusNumber> {
        let known = self.initiators.iter();
        known
            .filter(|initiator| ports.contains(&initiator.ports))
            .map(|initiator| initiator.nexus)
            .collect()
    }

    /// Adds a unit attention with this code for an initiator.
    pub fn raise_attention(&mut self, nexus: NexusNumber, code: u16) {
        for initiator in &mut self.initiators {
            if initiator.nexus == nexus {
                initiator.pending_attentions.raise_coalesced(code);
            }
        }
    }

    pub fn raise_attention_for_all(&mut self, code: u16) {
        for initiator in &mut self.initiators {
            initiator.pending_attentions.raise_coalesced(code);
        }
    }

    pub fn raise_attention_for_others(&mut self, nexus: NexusNumber, code: u16) {
        for initiator in &mut self.initiators {
            if initiator.nexus != nexus {
                initiator.pending_attentions.raise_coalesced(code);
            }
        }
    }

    /// Raises each attention of the list for the initiator behind its ports.
    pub fn raise_attentions(&mut self, news: &AttentionList) {
        for (ports, code) in news {
            for initiator in &mut self.initiators {
                if initiator.ports == *ports {
                    initiator.pending_attentions.raise_coalesced(*code);
                }
            }
        }
    }

    /// Pending unit attentions of each initiator.
    pub fn all_pending_attentions(&self) -> Vec<(NexusNumber, Vec<u16>)> {
        let known = self.initiators.iter();
        known
            .map(|initiator| {
                (
                    initiator.nexus,
                    initiator.pending_attentions.iter().collect(),
                )
            })
            .collect()
    }

    /// Replaces all pending unit attentions.
    pub fn replace_all_attentions(&mut self, attentions: &[(NexusNumber, Vec<u16>)]) {
        for initiator in &mut self.initiators {
            initiator.pending_attentions = PendingAttentions::default();
        }
        for (nexus, codes) in attentions {
            for code in codes {
                self.raise_attention(*nexus, *code);
            }
        }
    }

    /// Removes the initiator's oldest unit attention, to report it.
    pub fn take_attention(&mut self, nexus: NexusNumber) -> Option<Sense> {
        let mut known = self.initiators.iter_mut();
        let found = known.find(|initiator| initiator.nexus == nexus)?;
        found.pending_attentions.take_oldest().map(Sense::attention)
    }

    /// Removes an attention that the initiator was notified of otherwise.
    pub fn remove_attention(&mut self, nexus: NexusNumber, code: u16) {
        for initiator in &mut self.initiators {
            if initiator.nexus == nexus {
                initiator.pending_attentions.remove(code);
            }
        }
    }

    /// Whether reservations allow this access.
    pub fn allows_access(&self, nexus: NexusNumber, access: AccessWhenReserved) -> bool {
        match self.legacy_holder {
            Some(holder) if holder != nexus => {
                matches!(
                    access,
                    AccessWhenReserved::Free | AccessWhenReserved::Reservations
                )
            }
            _ => self.reservations.allows(self.ports_of_nexus(nexus), access),
        }
    }

    /// The sense data of a refused write if the unit is write-protected.
    pub fn write_protection_error(&self) -> Option<Sense> {
        if self.read_only {
            Some(Sense::WRITE_PROTECTED)
        } else if self.modes.software_write_protect {
            Some(Sense::SOFTWARE_WRITE_PROTECTED)
        } else {
            None
        }
    }
}
