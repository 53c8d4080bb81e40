//! Persistent reservations (SPC-4, section 5.13): registrations, the reservation, and the access that it allows.

use crate::commands::AccessWhenReserved;
use crate::nexus::NexusPorts;
use crate::unit_attention::code;

/// Most registrations of a unit.
pub(crate) const MAX_REGISTRATIONS: usize = 128;

/// The type of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ReservationKind {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrants = 5,
    ExclusiveAccessRegistrants = 6,
    WriteExclusiveAll = 7,
    ExclusiveAccessAll = 8,
}

impl ReservationKind {
    /// The type with this code. `None`: it is obsolete or reserved.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => ReservationKind::WriteExclusive,
            3 => ReservationKind::ExclusiveAccess,
            5 => ReservationKind::WriteExclusiveRegistrants,
            6 => ReservationKind::ExclusiveAccessRegistrants,
            7 => ReservationKind::WriteExclusiveAll,
            8 => ReservationKind::ExclusiveAccessAll,
            _ => return None,
        })
    }

    /// Whether all registrants hold it together.
    pub fn is_of_all_registrants(self) -> bool {
        matches!(
            self,
            ReservationKind::WriteExclusiveAll | ReservationKind::ExclusiveAccessAll
        )
    }

    /// Whether all registrants have access.
    fn gives_registrants_access(self) -> bool {
        !matches!(
            self,
            ReservationKind::WriteExclusive | ReservationKind::ExclusiveAccess
        )
    }

    /// Whether others may read.
    fn allows_others_to_read(self) -> bool {
        matches!(
            self,
            ReservationKind::WriteExclusive
                | ReservationKind::WriteExclusiveRegistrants
                | ReservationKind::WriteExclusiveAll
        )
    }
}

/// The registration of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub ports: NexusPorts,
    pub key: u64,
}

/// A reservation of the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub kind: ReservationKind,
    /// The holder; `None`: all registrants.
    pub holder: Option<NexusPorts>,
}

/// Unit attentions to raise: initiators and codes.
pub(crate) type AttentionList = Vec<(NexusPorts, u16)>;

/// Error of a command that ends with RESERVATION CONFLICT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationConflict;

/// All registrations and the reservation of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    pub registrations: Vec<Registration>,
    pub reservation: Option<Reservation>,
    /// PRGENERATION.
    pub generation: u32,
    /// APTPL: they survive a restart.
    pub persist: bool,
}

impl Reservations {
    /// The key with which an initiator is registered.
    pub fn registered_key(&self, ports: &NexusPorts) -> Option<u64> {
        let found = self
            .registrations
            .iter()
            .find(|registration| registration.ports == *ports);
        found.map(|registration| registration.key)
    }

    /// Checks that an initiator is registered with this key.
    pub fn check_key(&self, ports: &NexusPorts, key: u64) -> Result<(), ReservationConflict> {
        if self.registered_key(ports) == Some(key) {
            Ok(())
        } else {
            Err(ReservationConflict)
        }
    }

    /// Whether an initiator holds the reservation.
    pub fn is_holder(&self, ports: &NexusPorts) -> bool {
        match &self.reservation {
            None => false,
            Some(held) => match &held.holder {
                Some(holder) => holder == ports,
                None => self.registered_key(ports).is_some(),
            },
        }
    }

    /// Whether an access is allowed. `ports` is `None` for an initiator that is not attached.
    pub fn allows(&self, ports: Option<&NexusPorts>, access: AccessWhenReserved) -> bool {
        let Some(held) = &self.reservation else {
            return true;
        };
        if ports.is_some_and(|ports| {
            self.is_holder(ports)
                || held.kind.gives_registrants_access() && self.registered_key(ports).is_some()
        }) {
            return true;
        }
        match access {
            AccessWhenReserved::Free
            | AccessWhenReserved::Ready
            | AccessWhenReserved::Reservations => true,
            AccessWhenReserved::Reads => held.kind.allows_others_to_read(),
            AccessWhenReserved::Writes => false,
        }
    }

    fn other_registrations(&self, ports: &NexusPorts) -> impl Iterator<Item = &Registration> {
        self.registrations
            .iter()
            .filter(move |registration| registration.ports != *ports)
    }

    /// An attention with this code for each other registrant.
    fn attentions_for_others(&self, ports: &NexusPorts, code: u16) -> AttentionList {
        self.other_registrations(ports)
            .map(|registration| (registration.ports.clone(), code))
            .collect()
    }

    /// Registers an initiator, changes its key, or (with key 0) unregisters it.
    pub fn register_or_unregister(&mut self, ports: &NexusPorts, key: u64) -> AttentionList {
        self.generation = self.generation.wrapping_add(1);
        let at = self
            .registrations
            .iter()
            .position(|registration| registration.ports == *ports);
        match (at, key) {
            (None, 0) => Vec::new(),
            (None, _) => {
                let ports = ports.clone();
                self.registrations.push(Registration { ports, key });
                Vec::new()
            }
            (Some(at), 0) => self.unregister_and_release(at),
            (Some(at), _) => {
                self.registrations[at].key = key;
                Vec::new()
            }
        }
    }

    /// Removes a registration, and with it the reservation that it holds. Returns the attentions to raise.
    fn unregister_and_release(&mut self, at: usize) -> AttentionList {
        let gone = self.registrations.remove(at);
        let Some(held) = &self.reservation else {
            return Vec::new();
        };
        let released = match &held.holder {
            Some(holder) => *holder == gone.ports,
            None => self.registrations.is_empty(),
        };
        if !released {
            return Vec::new();
        }
        let registrants = held.kind.gives_registrants_access();
        self.reservation = None;
        if registrants {
            self.attentions_for_others(&gone.ports, code::RESERVATIONS_RELEASED)
        } else {
            Vec::new()
        }
    }

    /// Reserves the unit for a registrant.
    pub fn reserve(
        &mut self,
        ports: &NexusPorts,
        kind: ReservationKind,
    ) -> Result<(), ReservationConflict> {
        match &self.reservation {
            Some(held) if self.is_holder(ports) && held.kind == kind => Ok(()),
            Some(_) => Err(ReservationConflict),
            None => {
                self.set_reservation(ports, kind);
                Ok(())
            }
        }
    }

    /// Sets the reservation; all registrants hold one of their kinds.
    fn set_reservation(&mut self, ports: &NexusPorts, kind: ReservationKind) {
        let holder = (!kind.is_of_all_registrants()).then(|| ports.clone());
        self.reservation = Some(Reservation { kind, holder });
    }

    /// Releases a registrant's reservation. `Err`: it holds one of another type.
    pub fn release(
        &mut self,
        ports: &NexusPorts,
        kind: Option<ReservationKind>,
    ) -> Result<AttentionList, WrongReleaseKind> {
        let Some(held) = self.reservation.as_ref().filter(|_| self.is_holder(ports)) else {
            return Ok(Vec::new());
        };
        if kind != Some(held.kind) {
            return Err(WrongReleaseKind);
        }
        let registrants = held.kind.gives_registrants_access();
        self.reservation = None;
        Ok(if registrants {
            self.attentions_for_others(ports, code::RESERVATIONS_RELEASED)
        } else {
            Vec::new()
        })
    }

    /// Removes all registrations and the reservation.
    pub fn clear(&mut self, ports: &NexusPorts) -> AttentionList {
        let news = self.attentions_for_others(ports, code::RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        news
    }

    /// Removes registrations, and takes over the reservation if it belongs to them. Returns the attentions to raise, and
    /// the initiators that have lost their registration.
    pub fn preempt(
        &mut self,
        ports: &NexusPorts,
        key: u64,
        kind: Option<ReservationKind>,
    ) -> Result<(AttentionList, Vec<NexusPorts>), PreemptError> {
        let all_hold = self
            .reservation
            .as_ref()
            .is_some_and(|held| held.kind.is_of_all_registrants());
        if key == 0 && !all_hold {
            return Err(PreemptError::NoKey);
        }
        let matching = |registration: &Registration| key == 0 || registration.key == key;
        let takes_over = match &self.reservation {
            None => false,
            Some(held) => match &held.holder {
                Some(holder) => self.registered_key(holder) == Some(key),
                None => key == 0,
            },
        };
        if !takes_over && !self.registrations.iter().any(matching) {
            return Err(PreemptError::Conflict);
        }
        if takes_over && kind.is_none() {
            return Err(PreemptError::NoKind);
        }
        let lost: Vec<NexusPorts> = self
            .other_registrations(ports)
            .filter(|registration| matching(registration))
            .map(|registration| registration.ports.clone())
            .collect();
        // An initiator that preempts its own key without taking over is removed as well.
        let keep_self = takes_over || self.registered_key(ports) != Some(key);
        self.registrations.retain(|registration| {
            !lost.contains(&registration.ports) && (keep_self || registration.ports != *ports)
        });
        let mut news: AttentionList = lost
            .iter()
            .map(|ports| (ports.clone(), code::REGISTRATIONS_PREEMPTED))
            .collect();
        if let (true, Some(kind)) = (takes_over, kind) {
            let changed = self
                .reservation
                .as_ref()
                .is_some_and(|held| held.kind != kind);
            if changed {
                news.extend(self.attentions_for_others(ports, code::RESERVATIONS_RELEASED));
            }
            self.set_reservation(ports, kind);
        } else if all_hold && self.registrations.is_empty() {
            self.reservation = None;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok((news, lost))
    }

    /// Registers another initiator, moves the reservation to it, and unregisters the first if wanted.
    pub fn register_and_move(
        &mut self,
        from: &NexusPorts,
        to: &NexusPorts,
        key: u64,
        unregister_and_release: bool,
    ) {
        self.generation = self.generation.wrapping_add(1);
        match self
            .registrations
            .iter_mut()
            .find(|registration| registration.ports == *to)
        {
            Some(registration) => registration.key = key,
            None => self.registrations.push(Registration {
                ports: to.clone(),
                key,
            }),
        }
        if let Some(held) = &mut self.reservation {
            held.holder = Some(to.clone());
        }
        if unregister_and_release {
            self.registrations
                .retain(|registration| registration.ports != *from);
        }
    }
}

/// The type of the reservation differs from the one to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongReleaseKind;

/// Error of PREEMPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreemptError {
    /// No registrant has that key.
    Conflict,
    /// The key may be 0 only if all registrants hold the reservation.
    NoKey,
    /// The type of the new reservation is unknown.
    NoKind,
}

#[cfg(test)]
mod tests;
