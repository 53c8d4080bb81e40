//! The SCRIPTS of a driver as those of Linux and the BSDs are built for this chip: a start queue that SCRIPTS read, one control block
//! per command, disconnection and reselection by tag, phase mismatches handled by SCRIPTS, a done queue, and an
//! interrupt on the fly.

use crate::assemble::{
    ACK, ATN, COMMAND, DATA_IN, DATA_OUT, MSG_IN, MSG_OUT, Program, STATUS, When,
};
use crate::offsets::*;

/// Where the chip's own memory has to be mapped: the program stands at its beginning.
pub const RAM: u32 = 0xfe01_0000;

// Words that SCRIPTS keep.
/// The entry of the start queue that is looked at next.
pub const POS: u32 = 0x1000;
/// The entry of the done queue that is written next.
pub const DONE_POS: u32 = 0x1004;
/// The command that is being completed.
pub const SAVED: u32 = 0x1008;
/// Where a block move that was interrupted goes on.
pub const PM_ADDR: u32 = 0x100c;
/// The table of targets.
pub const TARGET_TABLE_ADDR: u32 = 0x1010;
/// The status byte.
pub const SCRATCH: u32 = 0x1014;
/// A message from the target.
pub const MESSAGE: u32 = 0x1018;

// Queues and tables.
/// Entries are a control block, and the address of the next entry.
pub const START_QUEUE: u32 = 0x9000;
/// The same; 0 where no command has been completed.
pub const DONE_QUEUE: u32 = 0xa000;
/// An address of [`TARGETS`] for each of 16.
pub const TARGET_TABLE: u32 = 0x2000;
/// What stands in the start queue where there is no command.
pub const IDLE: u32 = 0x2100;
/// 256 bytes for each target: addresses of [`UNITS`], by logical unit.
pub const TARGETS: u32 = 0x2200;
/// 16 bytes for each unit, 16 units for each target: the program that serves its reselections, and where that finds the command.
pub const UNITS: u32 = 0x4000;
/// 256 bytes for each target: control blocks, by tag.
pub const TAGS: u32 = 0x8000;
/// Control blocks, of 256 bytes.
pub const BLOCKS: u32 = 0x1_0000;
/// From here on memory is not used.
pub const BUFFERS: u32 = 0x4_0000;

/// Entries of either queue; there is room for another behind the last.
pub const QUEUE_ROOM: u32 = 300;

// What stands in a control block.
/// The target to be selected.
pub const SELECT: u32 = 0x00;
/// Length and address of the messages.
pub const MSG_OUT_ENTRY: u32 = 0x08;
/// Length and address of the command.
pub const COMMAND_ENTRY: u32 = 0x10;
/// The block move that comes next.
pub const SAVED_POINTER: u32 = 0x18;
/// Whether it is completed (1), and with which status, in the two lower bytes.
pub const STATUS_WORD: u32 = 0x1c;
/// What is left of a block move that was interrupted.
pub const PM_ENTRY: u32 = 0x20;
/// And the one behind it.
pub const PM_RETURN: u32 = 0x28;
/// Length and address of each piece of data; they end at the last entry.
pub const DATA: u32 = 0x40;
/// Pieces at most.
pub const PIECES: u32 = 16;
/// Messages to the target.
pub const MESSAGE_BYTES: u32 = 0xc0;
/// The command.
pub const CDB: u32 = 0xd0;
/// The block move that was not reached.
pub const LAST_POINTER: u32 = 0xe0;
/// Where SCRIPTS go when the command is started.
pub const GO_START: u32 = 0xf8;
/// Where they go when the target comes back.
pub const GO_RESTART: u32 = 0xfc;

/// What a driver writes before SCRIPTS run, by the register's width: 1 or 4 bytes.
#[must_use]
pub fn registers(program: &Program) -> Vec<(u8, usize, u32)> {
    let mismatch = program.address("pm");
    vec![
        (ISTAT0, 1, 0x40),
        (SCID, 1, 0x47),
        (SIEN0, 1, 0x8f),
        (SIEN1, 1, 0x04),
        (DIEN, 1, 0x7d),
        (CCNTL0, 1, 0x80),
        (DCNTL, 1, 0x01),
        (PMJAD1, 4, mismatch),
        (PMJAD2, 4, mismatch),
    ]
}

/// What stands in memory before SCRIPTS run, but for the queues' entries: addresses and words.
#[must_use]
pub fn tables(program: &Program) -> Vec<(u32, u32)> {
    let mut words = vec![
        (POS, START_QUEUE),
        (DONE_POS, DONE_QUEUE),
        (PM_ADDR, program.address("pm_data")),
        (TARGET_TABLE_ADDR, TARGET_TABLE),
        (IDLE + GO_START, program.address("unget")),
    ];
    words.extend((0..16).map(|target| (TARGET_TABLE + 4 * target, TARGETS + 0x100 * target)));
    words
}

/// All of it. It begins at `start`.
#[must_use]
pub fn program() -> Program {
    let mut p = Program::at(RAM);
    p.label("start");
    p.register(6, 2, CTEST2, 0);
    p.load(SCRATCHA, 4, POS).load(DSA, 4, POS);
    p.load_dsa(TEMP, 4, 4)
        .store(TEMP, 4, POS)
        .load_dsa(DSA, 4, 0);
    p.load_dsa(TEMP, 4, GO_START).ret(When::Always);

    p.label("select").select_table_atn(SELECT, "unget");
    p.load_dsa(TEMP, 4, SAVED_POINTER)
        .load_dsa(SCRATCHC, 4, STATUS_WORD);
    p.int(When::NotPhase(MSG_OUT), 0x11);
    p.move_table(MSG_OUT, MSG_OUT_ENTRY);
    p.jump(When::NotPhase(COMMAND), "dispatch");
    p.label("command").move_table(COMMAND, COMMAND_ENTRY);

    p.label("dispatch").jump(When::Phase(MSG_IN), "msg_in");
    p.jump(When::IfPhase(DATA_OUT), "data")
        .jump(When::IfPhase(DATA_IN), "data");
    p.jump(When::IfPhase(STATUS), "status")
        .jump(When::IfPhase(COMMAND), "command");
    p.int(When::Always, 0x12);
    p.label("data").ret(When::Always);

    for (label, phase) in [("data_in", DATA_IN), ("data_out", DATA_OUT)] {
        p.label(label);
        for piece in 0..PIECES {
            p.move_table(phase, DATA + 8 * piece);
        }
        p.call(When::Always, "data_done").int(When::Always, 0x13);
    }
    p.label("no_data").int(When::Always, 0x14);
    p.label("data_done");
    p.int(When::Phase(DATA_IN), 0x15)
        .int(When::IfPhase(DATA_OUT), 0x16);
    p.jump(When::Phase(STATUS), "status")
        .jump(When::Always, "dispatch");

    p.label("status").move_direct(STATUS, 1, SCRATCH);
    p.register(5, 2, SCRATCHC + 1, 0)
        .register(7, 0, SCRATCHC, 1);
    p.jump(When::Phase(MSG_IN), "msg_in")
        .jump(When::Always, "dispatch");

    p.label("msg_in").move_direct(MSG_IN, 1, MESSAGE);
    p.jump(When::Data(0x00, 0), "complete")
        .jump(When::Data(0x04, 0), "disconnect");
    p.jump(When::Data(0x02, 0), "save").int(When::Always, 0x17);

    p.label("complete").store_dsa(TEMP, 4, LAST_POINTER);
    p.register(7, 4, SCNTL2, 0x7f)
        .clear(ACK | ATN)
        .wait_disconnect();
    p.store_dsa(SCRATCHC, 4, STATUS_WORD);
    p.store(DSA, 4, SAVED)
        .load(DSA, 4, DONE_POS)
        .load(SCRATCHA, 4, SAVED)
        .store_dsa(SCRATCHA, 4, 0);
    p.load_dsa(TEMP, 4, 4).int_fly().store(TEMP, 4, DONE_POS);
    p.jump(When::Always, "start");

    p.label("save")
        .clear(ACK)
        .store_dsa(TEMP, 4, SAVED_POINTER)
        .jump(When::Always, "dispatch");
    p.label("disconnect")
        .register(7, 4, SCNTL2, 0x7f)
        .clear(ACK | ATN)
        .wait_disconnect();
    p.store_dsa(SCRATCHC, 4, STATUS_WORD)
        .jump(When::Always, "start");

    p.label("unget").store(SCRATCHA, 4, POS);
    p.label("reselect").wait_reselect("start");
    p.register(6, 4, SSID, 0x8f).register(5, 2, SDID, 0);
    p.load(DSA, 4, TARGET_TABLE_ADDR);
    p.register(5, 1, DSA, 0)
        .register(7, 1, DSA, 0)
        .register(7, 4, DSA, 0x3c)
        .load_dsa(DSA, 4, 0);
    p.int(When::NotPhase(MSG_IN), 0x18);
    p.move_direct(MSG_IN, 1, MESSAGE)
        .int(When::NotData(0x80, 0x7f), 0x19);
    p.register(5, 1, DSA, 0)
        .register(7, 1, DSA, 0)
        .register(7, 4, DSA, 0xfc)
        .load_dsa(DSA, 4, 0);
    p.load_dsa(TEMP, 4, 0).ret(When::Always);
    p.label("tagged").clear(ACK).move_direct(MSG_IN, 2, MESSAGE);
    p.load_dsa(DSA, 4, 4)
        .register(6, 1, SIDL, 0)
        .register(5, 4, DSA, 0xfc);
    p.load_dsa(DSA, 4, 0)
        .load_dsa(TEMP, 4, GO_RESTART)
        .ret(When::Always);
    p.label("untagged")
        .load_dsa(DSA, 4, 4)
        .load_dsa(TEMP, 4, GO_RESTART)
        .ret(When::Always);
    p.label("restart").clear(ACK);
    p.load_dsa(TEMP, 4, SAVED_POINTER)
        .load_dsa(SCRATCHC, 4, STATUS_WORD)
        .jump(When::Always, "dispatch");

    p.label("pm")
        .register(7, 6, IA, 8)
        .register(7, 7, IA + 1, 0);
    p.store_dsa(IA, 4, PM_RETURN)
        .store_dsa(RBC, 4, PM_ENTRY)
        .store_dsa(UA, 4, PM_ENTRY + 4);
    p.load(TEMP, 4, PM_ADDR).jump(When::Always, "dispatch");
    p.label("pm_data").jump(When::NotPhase(DATA_IN), "pm_out");
    p.move_table(DATA_IN, PM_ENTRY).jump(When::Always, "pm_end");
    p.label("pm_out").move_table(DATA_OUT, PM_ENTRY);
    p.label("pm_end")
        .load_dsa(TEMP, 4, PM_RETURN)
        .ret(When::Always);
    p
}
