//! PERSISTENT RESERVE OUT: plans changes of registrations and the reservation, which are applied after they were saved.

use crate::bytes::{be16, be32, be64, byte};
use crate::cdb::Cdb;
use crate::nexus::{NexusNumber, NexusPorts, TransportId, transport_id_len};
use crate::refusal::RefusalStatus;
use crate::reservations::{
    AttentionList, MAX_REGISTRATIONS, PreemptError, ReservationConflict, ReservationKind,
    Reservations,
};
use crate::sense::Sense;
use crate::unit::Unit;

const REGISTER: u8 = 0x00;
const RESERVE: u8 = 0x01;
const RELEASE: u8 = 0x02;
const CLEAR: u8 = 0x03;
const PREEMPT: u8 = 0x04;
const PREEMPT_AND_ABORT: u8 = 0x05;
const REGISTER_AND_IGNORE: u8 = 0x06;
const REGISTER_AND_MOVE: u8 = 0x07;

/// Parameters of all but REGISTER AND MOVE.
const LIST_BYTES: usize = 24;

/// The longest list: REGISTER AND MOVE with an iSCSI name.
const MAX_LIST_BYTES: u64 = 512;

/// The length of the parameter list.
pub(crate) fn checked_parameter_list_len(cdb: &Cdb) -> Result<u64, Sense> {
    let len = u64::from(cdb.be32(5));
    let right = match cdb.service_action() {
        REGISTER_AND_MOVE => (LIST_BYTES as u64..=MAX_LIST_BYTES).contains(&len),
        _ => len == LIST_BYTES as u64,
    };
    if right {
        Ok(len)
    } else {
        Err(Sense::PARAMETER_LIST_LENGTH)
    }
}

impl From<ReservationConflict> for RefusalStatus {
    fn from(_: ReservationConflict) -> Self {
        RefusalStatus::Conflict
    }
}

/// A command with its parameter list.
struct ReserveOutRequest<'a> {
    cdb: &'a Cdb,
    list: &'a [u8],
    ports: NexusPorts,
}

/// The error if there is no room for what the command adds; `None` if it adds nothing.
pub(crate) fn no_room_sense(cdb: &Cdb) -> Option<Sense> {
    match cdb.service_action() {
        REGISTER | REGISTER_AND_IGNORE | REGISTER_AND_MOVE => Some(Sense::NO_REGISTRATION_LEFT),
        RESERVE | PREEMPT | PREEMPT_AND_ABORT => Some(Sense::NO_RESERVATION_LEFT),
        _ => None,
    }
}

/// A planned change.
pub(crate) struct PlannedReservationChange {
    planned: Reservations,
    attentions: AttentionList,
    /// Initiators whose tasks are to end.
    preempted: Vec<NexusPorts>,
    /// It changes what is stored across restarts.
    must_be_stored: bool,
}

/// Plans the change of a command. No other change may be in progress.
pub(crate) fn plan_reservation_change(
    cdb: &Cdb,
    unit: &Unit,
    nexus: NexusNumber,
    list: &[u8],
) -> Result<PlannedReservationChange, RefusalStatus> {
    let has_store = unit.options.reservation_store.is_some();
    unit.read_state(|state| {
        // An initiator that is not attached cannot be registered.
        let ports = state
            .ports_of_nexus(nexus)
            .ok_or(RefusalStatus::Conflict)?
            .clone();
        let before = &state.reservations;
        let mut planned = before.clone();
        let request = ReserveOutRequest { cdb, list, ports };
        let (attentions, preempted) = request.apply_to(&mut planned, has_store)?;
        Ok(PlannedReservationChange {
            must_be_stored: planned != *before && (before.persist || planned.persist),
            planned,
            attentions,
            preempted: preempted.unwrap_or_default(),
        })
    })
}

impl PlannedReservationChange {
    /// Whether it changes what is stored across restarts.
    pub fn must_be_stored(&self) -> bool {
        self.must_be_stored
    }

    /// The text to store.
    pub fn text_to_store(&self) -> String {
        self.planned.text_that_survives_power_loss()
    }

    /// Applies the change. Returns the initiators whose tasks are to end.
    pub fn apply(self, unit: &Unit, nexus: NexusNumber) -> Vec<NexusNumber> {
        unit.change_state_and_access_word(|state| {
            state.reservations = self.planned;
            state.raise_attentions(&self.attentions);
            let mut preempted = state.nexuses_of_ports(&self.preempted);
            preempted.retain(|other| *other != nexus);
            preempted
        })
    }
}

/// PendingAttentions to raise, and initiators whose tasks are to end.
type Effects = (AttentionList, Option<Vec<NexusPorts>>);

impl ReserveOutRequest<'_> {
    fn reservation_key(&self) -> u64 {
        be64(self.list, 0)
    }

    /// SERVICE ACTION RESERVATION KEY.
    fn new_key(&self) -> u64 {
        be64(self.list, 8)
    }

    /// The type of reservation of the command, if it is valid and its scope is the unit.
    fn kind(&self) -> Option<ReservationKind> {
        let byte = self.cdb.byte(2);
        (byte >> 4 == 0)
            .then(|| ReservationKind::from_code(byte & 0xf))
            .flatten()
    }

    /// The same, or the sense data that points to the wrong field.
    fn checked_kind(&self) -> Result<ReservationKind, Sense> {
        let bit = if self.cdb.byte(2) >> 4 == 0 { 3 } else { 7 };
        self.kind().ok_or(Sense::invalid_cdb_field(2, Some(bit)))
    }

    /// Applies the command to a copy of the reservations. Returns the effects on other initiators.
    fn apply_to(
        &self,
        reservations: &mut Reservations,
        has_store: bool,
    ) -> Result<Effects, RefusalStatus> {
        let action = self.cdb.service_action();
        let registers = matches!(action, REGISTER | REGISTER_AND_IGNORE);
        // SPEC_I_PT and ALL_TG_PT, which only registering has, are not supported; APTPL is if there is a store.
        let flags = byte(self.list, 20);
        if registers && flags & 0x0c != 0 {
            let bit = if flags & 0x08 != 0 { 3 } else { 2 };
            return Err(Sense::invalid_parameter(20, Some(bit)).into());
        }
        if registers && flags & 0x01 != 0 && !has_store {
            return Err(Sense::invalid_parameter(20, Some(0)).into());
        }
        let ports = &self.ports;
        if !registers {
            reservations.check_key(ports, self.reservation_key())?;
        }
        match action {
            REGISTER | REGISTER_AND_IGNORE => {
                self.register_or_unregister(reservations, flags & 0x01 != 0)
            }
            RESERVE => {
                reservations.reserve(ports, self.checked_kind()?)?;
                Ok((AttentionList::new(), None))
            }
            RELEASE => {
                let attentions = reservations.release(ports, self.kind());
                Ok((attentions.map_err(|_| Sense::INVALID_RELEASE)?, None))
            }
            CLEAR => Ok((reservations.clear(ports), None)),
            PREEMPT | PREEMPT_AND_ABORT => {
                let (attentions, preempted) = reservations
                    .preempt(ports, self.new_key(), self.kind())
                    .map_err(|error| match error {
                        PreemptError::Conflict => RefusalStatus::Conflict,
                        PreemptError::NoKey => Sense::invalid_parameter(8, None).into(),
                        PreemptError::NoKind => Sense::invalid_cdb_field(2, Some(3)).into(),
                    })?;
                Ok((
                    attentions,
                    (action == PREEMPT_AND_ABORT).then_some(preempted),
                ))
            }
            REGISTER_AND_MOVE => self.register_and_move(reservations, has_store),
            _ => Err(Sense::invalid_cdb_field(1, Some(4)).into()),
        }
    }

    /// REGISTER, and REGISTER AND IGNORE EXISTING KEY: adds, changes or removes a registration.
    fn register_or_unregister(
        &self,
        reservations: &mut Reservations,
        persist: bool,
    ) -> Result<Effects, RefusalStatus> {
        let ignores_key = self.cdb.service_action() == REGISTER_AND_IGNORE;
        let registered = reservations.registered_key(&self.ports);
        // The key of an initiator that is not registered is 0.
        if !ignores_key && registered.unwrap_or(0) != self.reservation_key() {
            return Err(RefusalStatus::Conflict);
        }
        let adds = registered.is_none() && self.new_key() != 0;
        if adds && reservations.registrations.len() >= MAX_REGISTRATIONS {
            return Err(Sense::NO_REGISTRATION_LEFT.into());
        }
        if registered.is_none() && !adds {
            return Ok((AttentionList::new(), None));
        }
        reservations.persist = persist;
        Ok((
            reservations.register_or_unregister(&self.ports, self.new_key()),
            None,
        ))
    }

    /// REGISTER AND MOVE, whose list has another layout.
    fn register_and_move(
        &self,
        reservations: &mut Reservations,
        has_store: bool,
    ) -> Result<Effects, RefusalStatus> {
        let flags = byte(self.list, 17);
        let id_len = be32(self.list, 20);
        let id = &self.list[LIST_BYTES.min(self.list.len())..];
        if u64::from(id_len) != id.len() as u64 {
            return Err(Sense::PARAMETER_LIST_LENGTH.into());
        }
        if flags & 0x01 != 0 && !has_store {
            return Err(Sense::invalid_parameter(17, Some(0)).into());
        }
        if reservations.reservation.is_none() {
            return Err(Sense::invalid_cdb_field(1, Some(4)).into());
        }
        let individual = reservations
            .reservation
            .as_ref()
            .is_some_and(|held| !held.kind.is_of_all_registrants());
        if !individual || !reservations.is_holder(&self.ports) {
            return Err(RefusalStatus::Conflict);
        }
        if self.new_key() == 0 {
            return Err(Sense::invalid_parameter(8, None).into());
        }
        let initiator = (transport_id_len(id) == id.len())
            .then(|| TransportId::decode(id))
            .flatten()
            .ok_or(Sense::invalid_parameter(LIST_BYTES, None))?;
        let to = NexusPorts {
            initiator,
            target: be16(self.list, 18),
        };
        if to.initiator == self.ports.initiator || to.target == 0 {
            return Err(Sense::invalid_parameter(LIST_BYTES, None).into());
        }
        if reservations.registered_key(&to).is_none()
            && reservations.registrations.len() >= MAX_REGISTRATIONS
        {
            return Err(Sense::NO_REGISTRATION_LEFT.into());
        }
        reservations.persist = flags & 0x01 != 0;
        reservations.register_and_move(&self.ports, &to, self.new_key(), flags & 0x02 != 0);
        Ok((AttentionList::new(), None))
    }
}
