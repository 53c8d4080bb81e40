//! The control queue of a virtio SCSI controller, and what drivers write to its configuration space.

use crate::row::Answer::{self, Accepted, Broken, Refused};
use crate::row::Rows;
use crate::scsi::{
    CONTROL, DONE, FEATURES, INQUIRY, NO_TARGET, UNIT, ask, command, function, ready,
};
use crate::wire::{SET_CONFIG, config};

const REJECTED: Answer = Answer::Response(11);
const NO_UNIT: Answer = Answer::Response(12);

pub fn rows(rows: &mut Rows) {
    functions(rows);
    no_functions(rows);
    sizes(rows);
}

/// Rows of task management functions that are unknown or have no object.
fn functions(rows: &mut Rows) {
    for (what, subtype, lun, answer) in [
        ("the end of a command that is not there", 0, UNIT, DONE),
        ("CLEAR ACA", 2, UNIT, REJECTED),
        ("a function 8", 8, UNIT, REJECTED),
        ("a function 2^32 - 1", u32::MAX, UNIT, REJECTED),
        (
            "a reset of a unit that is not there",
            5,
            [1, 0, 0, 1, 0, 0, 0, 0],
            NO_UNIT,
        ),
        (
            "a reset of a target that is not there",
            5,
            [1, 9, 0, 0, 0, 0, 0, 0],
            NO_TARGET,
        ),
        ("a reset of no address", 4, [0xff; 8], NO_TARGET),
    ] {
        rows.row(what, answer, move |guest| {
            ready(guest);
            function(guest, subtype, lun)
        });
    }
}

fn no_functions(rows: &mut Rows) {
    let (kind, cut, room) = ([3, 0, 0, 0], 24, 5);
    for (what, kind, len, room, says) in [
        (
            "a request of no known type",
            kind,
            cut,
            room,
            "type 3, expected 0 to 2",
        ),
        ("a request of three bytes", [0; 4], 3, room, "is too short"),
        (
            "a function without its tag",
            [0; 4],
            16,
            room,
            "is too short",
        ),
        (
            "a function without room for an answer",
            [0; 4],
            cut,
            0,
            "is too short",
        ),
        (
            "a query of events without room for them",
            [1, 0, 0, 0],
            16,
            4,
            "is too short",
        ),
        (
            "a subscription without events",
            [2, 0, 0, 0],
            12,
            room,
            "is too short",
        ),
    ] {
        rows.row(what, Broken, move |guest| {
            ready(guest);
            let mut bytes = kind.to_vec();
            bytes.resize(24, 0);
            let writable: &[u32] = if room == 0 { &[] } else { &[room] };
            let answer = ask(guest, CONTROL, &[&bytes[..len]], writable, 0);
            assert_eq!(command(guest, &INQUIRY, 0, 96), DONE, "the other queue");
            answer
        })
        .says(says);
    }
}

/// What a driver writes to the configuration space.
fn sizes(rows: &mut Rows) {
    for (what, offset, size, answer) in [
        ("sense data of 17 bytes", 20, 17u32, Refused),
        ("sense data of 2^32 - 1 bytes", 20, u32::MAX, Refused),
        ("a CDB of 15 bytes", 24, 15, Refused),
        ("a CDB of 261 bytes", 24, 261, Refused),
        ("a thousand queues", 0, 1000, Refused),
        ("sense data of 18 bytes", 20, 18, Accepted),
        ("a CDB of 260 bytes", 24, 260, Accepted),
    ] {
        rows.row(what, answer, move |guest| {
            guest.negotiate(FEATURES);
            let bytes = config(offset, 4, 0, &size.to_le_bytes());
            guest.ask(SET_CONFIG, &bytes, &[])
        });
    }
}
