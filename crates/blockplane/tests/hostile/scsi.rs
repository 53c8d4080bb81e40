//! A virtio SCSI controller: what is a request is answered, whatever it says; what is none breaks its queue and no
//! other. All addresses, functions and sizes are in the tests of `virtio-scsi`.

use virtqueue::testing::{Buffer, RawDescriptor};

use crate::daemon::{DISK_BYTES, SCSI};
use crate::front_end::{HostileFrontEnd, MEMORY, NO_STATUS, PROTOCOL_FEATURES, VERSION_1};
use crate::row::Answer::{self, Broken};
use crate::row::Rows;
use crate::wire::RESET_DEVICE;

/// Hot plug and parameter changes, of which the guest wants to hear.
const FEATURES: u64 = 1 << 1 | 1 << 2 | PROTOCOL_FEATURES | VERSION_1;
const ENTRIES: u16 = 128;

const CONTROL: usize = 0;
const COMMANDS: usize = 2;

/// Response, and room for sense data.
const ANSWER: u32 = 12 + 96;
/// Where a response has its code.
const CODE_AT: u32 = 11;

const OVERRUN: Answer = Answer::Response(1);
const NO_TARGET: Answer = Answer::Response(3);
const FAILURE: Answer = Answer::Response(9);
const REJECTED: Answer = Answer::Response(11);
const NO_UNIT: Answer = Answer::Response(12);
/// The SCSI status says the rest.
const DONE: Answer = Answer::Response(0);

/// Target 0, LUN 0: the only one.
const UNIT: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];
const ABSENT_UNIT: [u8; 8] = [1, 0, 0, 1, 0, 0, 0, 0];
const ABSENT_TARGET: [u8; 8] = [1, 9, 0, 0, 0, 0, 0, 0];

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

pub fn rows(rows: &mut Rows) {
    no_commands(rows);
    commands(rows);
    functions(rows);
    rows.all_on(SCSI);
}

/// Does all that a front-end does until its queues run. The sizes that a driver has set outlive its connection, not the
/// reset that the next one begins with.
pub fn ready(guest: &mut HostileFrontEnd) {
    guest.negotiate(FEATURES);
    guest.must(RESET_DEVICE, &[], &[]);
    guest.share_memory();
    for index in 0..3 {
        guest.set_up(index, ENTRIES);
        guest.start(index);
    }
}

/// Asserts that the controller does what it is for.
pub fn assert_works(guest: &mut HostileFrontEnd, after: &str) {
    // It may have to say that it was switched on.
    command(guest, &TEST_UNIT_READY, 0, 0);
    assert_eq!(command(guest, &READ, 0, 512), DONE, "a read after: {after}");
    assert_eq!(function(guest, 5, UNIT), DONE, "a reset after: {after}");
}

/// Hands buffers to a queue: what the device reads, then what it writes, of which the byte at `code_at` is what the answer is
/// known by.
fn ask(
    guest: &mut HostileFrontEnd,
    index: usize,
    readable: &[&[u8]],
    writable: &[u32],
    code_at: u32,
) -> Answer {
    let mut buffers = Vec::new();
    for bytes in readable {
        let len = u32::try_from(bytes.len()).unwrap();
        buffers.push(Buffer::readable(guest.memory.alloc_bytes(bytes), len));
    }
    // One piece of memory, however it is cut.
    let room: u32 = writable.iter().sum();
    let start = guest.memory.alloc(u64::from(room.max(CODE_AT + 1)), 4);
    let mut at = start;
    for &len in writable {
        buffers.push(Buffer::writable(at, len));
        at += u64::from(len);
    }
    let code_at = start + u64::from(code_at);
    guest.memory.write(code_at, &[NO_STATUS]);
    guest.submit_buffers(index, &buffers);
    guest.queues[index].status = code_at;
    match guest.outcome(index) {
        Answer::Status(code) => {
            guest.queues[index].ring.take_used();
            Answer::Response(code)
        }
        other => other,
    }
}

/// Header and CDB, filled up to 32 bytes.
fn header(lun: [u8; 8], cdb: &[u8]) -> Vec<u8> {
    let mut bytes = lun.to_vec();
    bytes.extend([0; 11]);
    bytes.extend(cdb);
    bytes.resize(19 + 32, 0);
    bytes
}

/// A command to the one unit, with so many bytes for the device and so much room for what it says.
fn command(guest: &mut HostileFrontEnd, cdb: &[u8], out: usize, room: u32) -> Answer {
    let (header, data) = (header(UNIT, cdb), vec![0xff; out]);
    let readable = [&header[..], &data];
    let readable = &readable[..1 + usize::from(out > 0)];
    ask(guest, COMMANDS, readable, &[ANSWER, room], CODE_AT)
}

/// A task management function.
fn function(guest: &mut HostileFrontEnd, subtype: u32, lun: [u8; 8]) -> Answer {
    let bytes = [&[0; 4], &subtype.to_le_bytes()[..], &lun, &[0; 8]].concat();
    ask(guest, CONTROL, &[&bytes], &[1], 0)
}

/// The queue for commands breaks, and the control queue goes on.
fn no_commands(rows: &mut Rows) {
    for (what, len, room, says) in [
        ("nothing to read", 0, ANSWER, "device-readable bytes"),
        ("a CDB cut short", 50, ANSWER, "device-readable bytes"),
        ("no room for sense", 51, ANSWER - 1, "expected 108"),
    ] {
        let row = rows.row(format!("a command with {what}"), Broken, move |guest| {
            ready(guest);
            let header = &header(UNIT, &INQUIRY)[..len];
            let readable = &[header][..usize::from(len > 0)];
            let answer = ask(guest, COMMANDS, readable, &[room], CODE_AT);
            assert_eq!(function(guest, 0, UNIT), DONE, "the control queue");
            answer
        });
        row.says(says);
    }
    for (what, addr, len) in [
        ("below the guest's memory", 0, 51),
        ("longer than the guest's memory", MEMORY, u32::MAX),
    ] {
        let row = rows.row(format!("a header {what}"), Broken, move |guest| {
            ready(guest);
            let (flags, next) = (0, 0);
            let header = RawDescriptor {
                addr,
                len,
                flags,
                next,
            };
            guest.chain(COMMANDS, &[header])
        });
        row.says("descriptor 0: buffer at");
    }
}

fn commands(rows: &mut Rows) {
    let end = u32::try_from(DISK_BYTES / 512).unwrap().to_be_bytes();
    let mut beyond = READ;
    beyond[2..6].copy_from_slice(&end);
    for (what, cdb, out, room, answer) in [
        ("a read with less room than blocks", READ, 0, 511, OVERRUN),
        ("a read with data for the device", READ, 512, 0, OVERRUN),
        ("data in both directions", READ, 512, 512, FAILURE),
        ("a read beyond the end", beyond, 0, 512, DONE),
        ("a read with much more room", READ, 0, 1 << 20, DONE),
    ] {
        rows.row(what, answer, move |guest| {
            ready(guest);
            command(guest, &TEST_UNIT_READY, 0, 0);
            command(guest, &cdb, out, room)
        });
    }
    for fill in [0, 0xff] {
        let what = format!("every operation code, with bytes of {fill:#x}");
        rows.row(what, DONE, move |guest| {
            ready(guest);
            for opcode in 0..=255 {
                let mut cdb = [fill; 16];
                cdb[0] = opcode;
                for (out, room) in [(0, 0), (512, 0), (0, 512)] {
                    let answer = command(guest, &cdb, out, room);
                    assert!(matches!(answer, DONE | OVERRUN), "{opcode:#x}: {answer:?}");
                }
            }
            command(guest, &INQUIRY, 0, 96)
        });
    }
}

/// Rows of task management functions that are unknown or have no object, and of requests to the control queue that are none.
fn functions(rows: &mut Rows) {
    for (what, subtype, lun, answer) in [
        ("the end of an absent command", 0, UNIT, DONE),
        ("an unknown function", 8, UNIT, REJECTED),
        ("a reset of an absent unit", 5, ABSENT_UNIT, NO_UNIT),
        ("a reset of an absent target", 5, ABSENT_TARGET, NO_TARGET),
    ] {
        rows.row(what, answer, move |guest| {
            ready(guest);
            function(guest, subtype, lun)
        });
    }
    for (what, kind, len, room, says) in [
        ("no known type", 3, 24, &[5][..], "type 3, expected 0 to 2"),
        ("three bytes", 0, 3, &[5], "is too short"),
        ("no room for an answer", 0, 24, &[], "is too short"),
        ("no room for events", 1, 16, &[4], "is too short"),
    ] {
        let row = rows.row(format!("a function with {what}"), Broken, move |guest| {
            ready(guest);
            let mut bytes = [0; 24];
            bytes[0] = kind;
            let answer = ask(guest, CONTROL, &[&bytes[..len]], room, 0);
            assert_eq!(command(guest, &INQUIRY, 0, 96), DONE, "the other queue");
            answer
        });
        row.says(says);
    }
}
