//! A virtio SCSI controller: what is a request is answered, whatever it says; what is none breaks its queue and no
//! other.

use virtqueue::testing::{Buffer, RawDescriptor};

use crate::daemon::{DISK_BYTES, SCSI};
use crate::guest::{Guest, MEMORY, PROTOCOL_FEATURES, VERSION_1};
use crate::row::Answer::{self, Broken};
use crate::row::Rows;
use crate::scsi_control;
use crate::wire::RESET_DEVICE;

/// Hot plug and parameter changes, of which the guest wants to hear.
pub const FEATURES: u64 = 1 << 1 | 1 << 2 | PROTOCOL_FEATURES | VERSION_1;
const ENTRIES: u16 = 128;

pub const CONTROL: usize = 0;
pub const COMMANDS: usize = 2;

/// Response, and room for sense data.
const ANSWER: u32 = 12 + 96;
/// Where a response has its code.
const CODE_AT: u32 = 11;

const OVERRUN: Answer = Answer::Response(1);
pub const NO_TARGET: Answer = Answer::Response(3);
const FAILURE: Answer = Answer::Response(9);
/// The SCSI status says the rest.
pub const DONE: Answer = Answer::Response(0);

/// Target 0, LUN 0: the only one.
pub const UNIT: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

const TEST_UNIT_READY: [u8; 6] = [0; 6];
pub const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

pub fn rows(rows: &mut Rows) {
    no_commands(rows);
    addresses(rows);
    commands(rows);
    scsi_control::rows(rows);
    rows.all_on(SCSI);
}

/// Does all that a front-end does until its queues run. The sizes that a driver has set outlive its connection, not the
/// reset that the next one begins with.
pub fn ready(guest: &mut Guest) {
    guest.negotiate(FEATURES);
    guest.must(RESET_DEVICE, &[], &[]);
    guest.share_memory();
    for index in 0..3 {
        guest.set_up(index, ENTRIES);
        guest.start(index);
    }
}

/// Whether the controller does what it is for.
pub fn works(guest: &mut Guest) -> Result<(), String> {
    // It may have to say that it was switched on.
    command(guest, &TEST_UNIT_READY, 0, 0);
    let read = command(guest, &READ, 0, 512);
    let function = function(guest, 5, UNIT);
    match (read, function) {
        (DONE, DONE) => Ok(()),
        other => Err(format!("a read and a reset of the unit: {other:?}")),
    }
}

/// Hands buffers to a queue: what the device reads, then what it writes, of which the byte at `code_at` is what the answer is
/// known by.
pub fn ask(
    guest: &mut Guest,
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
    let status = start + u64::from(code_at);
    guest.memory.write(status, &[0xff]);
    let queue = &mut guest.queues[index];
    queue.status = status;
    queue.ring.add(&buffers);
    queue.ring.signal_next();
    queue.ring.publish();
    queue.kick();
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
pub fn command(guest: &mut Guest, cdb: &[u8], out: usize, room: u32) -> Answer {
    let (header, data) = (header(UNIT, cdb), vec![0xff; out]);
    let readable: &[&[u8]] = match out {
        0 => &[&header],
        _ => &[&header, &data],
    };
    ask(guest, COMMANDS, readable, &[ANSWER, room], CODE_AT)
}

/// A task management function.
pub fn function(guest: &mut Guest, subtype: u32, lun: [u8; 8]) -> Answer {
    let mut bytes = vec![0; 4];
    bytes.extend(subtype.to_le_bytes());
    bytes.extend(lun);
    bytes.extend([0; 8]);
    ask(guest, CONTROL, &[&bytes], &[1], 0)
}

/// The queue for commands breaks, and the control queue goes on.
fn broken(
    rows: &mut Rows,
    what: &str,
    says: &'static str,
    act: impl Fn(&mut Guest) -> Answer + 'static,
) {
    rows.row(what, Broken, move |guest| {
        ready(guest);
        let answer = act(guest);
        assert_eq!(function(guest, 0, UNIT), DONE, "the control queue");
        answer
    })
    .says(says);
}

fn no_commands(rows: &mut Rows) {
    for (what, len) in [
        ("nothing", 0),
        ("a header without a CDB", 19),
        ("a CDB cut short", 50),
    ] {
        let what = format!("a command that is {what}");
        broken(rows, &what, "device-readable bytes", move |guest| {
            let header = &header(UNIT, &INQUIRY)[..len];
            let readable: &[&[u8]] = if len == 0 { &[] } else { &[header] };
            ask(guest, COMMANDS, readable, &[ANSWER], CODE_AT)
        });
    }
    for (what, room) in [
        ("no room", 0),
        ("room for a response without sense data", ANSWER - 1),
    ] {
        let what = format!("{what} for the answer");
        broken(
            rows,
            &what,
            "bytes of response, expected 108",
            move |guest| {
                let writable: &[u32] = if room == 0 { &[] } else { &[room] };
                ask(
                    guest,
                    COMMANDS,
                    &[&header(UNIT, &INQUIRY)],
                    writable,
                    CODE_AT,
                )
            },
        );
    }
    for (what, addr, len) in [
        ("below the guest's memory", 0, 51),
        ("at the end of addresses", u64::MAX - 16, 51),
        ("longer than the guest's memory", MEMORY, u32::MAX),
    ] {
        let what = format!("a header {what}");
        broken(rows, &what, "descriptor 0: buffer at", move |guest| {
            let queue = &mut guest.queues[COMMANDS];
            let (flags, next) = (0, 0);
            queue.ring.add_raw(&[RawDescriptor {
                addr,
                len,
                flags,
                next,
            }]);
            queue.kick();
            guest.outcome(COMMANDS)
        });
    }
}

/// Rows of LUN fields that address no unit.
fn addresses(rows: &mut Rows) {
    for (what, lun, answer) in [
        ("of zeroes", [0; 8], NO_TARGET),
        ("of ones", [0xff; 8], NO_TARGET),
        (
            "a target that is not there",
            [1, 9, 0, 0, 0, 0, 0, 0],
            NO_TARGET,
        ),
        (
            "the well-known unit",
            [0xc1, 1, 0, 0, 0, 0, 0, 0],
            NO_TARGET,
        ),
        (
            "a well-known unit of a target",
            [1, 0, 0xc1, 1, 0, 0, 0, 0],
            NO_TARGET,
        ),
        ("an extended one", [1, 0, 0xd2, 0, 0, 1, 0, 0], NO_TARGET),
        ("a bus", [1, 0, 1, 0, 0, 0, 0, 0], NO_TARGET),
        ("below a unit", [1, 0, 0, 0, 0, 1, 0, 0], NO_TARGET),
        ("a unit that is not there", [1, 0, 0, 1, 0, 0, 0, 0], DONE),
        ("the largest", [1, 0, 0x7f, 0xff, 0, 0, 0, 0], DONE),
        ("flat", [1, 0, 0x40, 0, 0, 0, 0, 0], DONE),
    ] {
        let what = format!("a LUN that is {what}");
        rows.row(what, answer, move |guest| {
            ready(guest);
            ask(
                guest,
                COMMANDS,
                &[&header(lun, &INQUIRY)],
                &[ANSWER, 96],
                CODE_AT,
            )
        });
    }
}

fn commands(rows: &mut Rows) {
    let end = u32::try_from(DISK_BYTES / 512).unwrap().to_be_bytes();
    let mut beyond = READ;
    beyond[2..6].copy_from_slice(&end);
    for (what, cdb, out, room, answer) in [
        ("a read with less room than blocks", READ, 0, 511, OVERRUN),
        ("a read with data for the device", READ, 512, 0, OVERRUN),
        ("a read without any room", READ, 0, 0, OVERRUN),
        ("a write with less data than blocks", WRITE, 511, 0, OVERRUN),
        ("a write with room for data", WRITE, 0, 512, OVERRUN),
        ("data in both directions", READ, 512, 512, FAILURE),
        ("a read beyond the end", beyond, 0, 512, DONE),
        (
            "a read with much more room than blocks",
            READ,
            0,
            1 << 20,
            DONE,
        ),
    ] {
        rows.row(what, answer, move |guest| {
            ready(guest);
            command(guest, &TEST_UNIT_READY, 0, 0);
            command(guest, &cdb, out, room)
        });
    }
    rows.row(
        "header, answer and data in pieces of a byte",
        DONE,
        |guest| {
            ready(guest);
            let header = header(UNIT, &[0x12, 0, 0, 0, 5, 0]);
            let readable: Vec<_> = header.chunks(1).collect();
            let mut writable = vec![1; 16];
            writable.push(ANSWER - 16);
            writable.extend([1; 5]);
            ask(guest, COMMANDS, &readable, &writable, CODE_AT)
        },
    );

    rows.row("every attribute and priority", DONE, |guest| {
        ready(guest);
        let mut last = DONE;
        for byte in 0..=255 {
            let mut header = header(UNIT, &INQUIRY);
            header[16..19].fill(byte);
            last = ask(guest, COMMANDS, &[&header], &[ANSWER, 96], CODE_AT);
            assert_eq!(last, DONE, "{byte}");
        }
        last
    });

    for fill in [0, 0xff] {
        let what = format!("every operation code, with bytes of {fill:#x}");
        rows.row(what, DONE, move |guest| {
            ready(guest);
            for opcode in 0..=255 {
                let mut cdb = [fill; 16];
                cdb[0] = opcode;
                for (out, room) in [(0, 0), (512, 0), (0, 512)] {
                    let answer = command(guest, &cdb, out, room);
                    assert!(matches!(answer, DONE | OVERRUN), "{opcode:#x}: {answer}");
                }
            }
            command(guest, &INQUIRY, 0, 96)
        });
    }
}
