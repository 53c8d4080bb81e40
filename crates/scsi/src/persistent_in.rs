//! PERSISTENT RESERVE IN: encodes registrations, the reservation and the unit's capabilities.

use crate::bytes::{put_bytes, saturated_u32};
use crate::cdb::Cdb;
use crate::reservations::Reservations;
use crate::unit::Unit;

const READ_KEYS: u8 = 0x00;
const READ_RESERVATION: u8 = 0x01;
const REPORT_CAPABILITIES: u8 = 0x02;

/// Appends the data to `out`, and returns the allocation length. The table has only four service actions.
pub(crate) fn persistent_in(cdb: &Cdb, unit: &Unit, out: &mut Vec<u8>) -> u64 {
    let has_store = unit.options.reservation_store.is_some();
    unit.read_state(|state| match cdb.service_action() {
        READ_KEYS => append_keys(&state.reservations, out),
        READ_RESERVATION => append_reservation(&state.reservations, out),
        REPORT_CAPABILITIES => append_capabilities(&state.reservations, has_store, out),
        _ => append_full_status(&state.reservations, out),
    });
    u64::from(cdb.be16(7))
}

/// Appends PRGENERATION and the length of the data that follows.
fn append_header(reservations: &Reservations, len: usize, out: &mut Vec<u8>) {
    out.extend(reservations.generation.to_be_bytes());
    out.extend(saturated_u32(len as u64).to_be_bytes());
}

/// READ KEYS: the key of each registration.
fn append_keys(reservations: &Reservations, out: &mut Vec<u8>) {
    append_header(reservations, reservations.registrations.len() * 8, out);
    for registration in &reservations.registrations {
        out.extend(registration.key.to_be_bytes());
    }
}

/// READ RESERVATION: key and type of the reservation, if there is one.
fn append_reservation(reservations: &Reservations, out: &mut Vec<u8>) {
    let Some(held) = &reservations.reservation else {
        append_header(reservations, 0, out);
        return;
    };
    append_header(reservations, 16, out);
    // A reservation of all registrants has no key.
    let key = held
        .holder
        .as_ref()
        .and_then(|holder| reservations.registered_key(holder));
    out.extend(key.unwrap_or(0).to_be_bytes());
    out.extend([0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
}

/// REPORT CAPABILITIES: types of reservations, and whether they can survive a restart.
fn append_capabilities(reservations: &Reservations, has_store: bool, out: &mut Vec<u8>) {
    out.extend([0, 8]);
    // PTPL_C. Not CRH, SIP_C nor ATP_C.
    out.push(u8::from(has_store));
    // TMV: the mask of types is valid; PTPL_A.
    out.push(0x80 | u8::from(reservations.persist));
    // All six types.
    out.extend([0xea, 0x01, 0, 0]);
}

/// READ FULL STATUS: key, initiator and reservation of each registration.
fn append_full_status(reservations: &Reservations, out: &mut Vec<u8>) {
    let mut list = Vec::new();
    for registration in &reservations.registrations {
        let mut head = [0; 24];
        put_bytes(&mut head, 0, &registration.key.to_be_bytes());
        if let Some(held) = reservations
            .reservation
            .as_ref()
            .filter(|_| reservations.is_holder(&registration.ports))
        {
            head[12] = 0x01;
            head[13] = held.kind as u8;
        }
        put_bytes(&mut head, 18, &registration.ports.target.to_be_bytes());
        let id = registration.ports.initiator.encode();
        put_bytes(&mut head, 20, &saturated_u32(id.len() as u64).to_be_bytes());
        list.extend(head);
        list.extend(id);
    }
    append_header(reservations, list.len(), out);
    out.extend(list);
}
