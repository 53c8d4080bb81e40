//! The SCRIPTS of a driver as those of Linux and the BSDs are built for this chip: a start queue that SCRIPTS read, one control block
//! per command, disconnection and reselection by tag, phase mismatches handled by SCRIPTS, a done queue, and an
//! interrupt on the fly.

use crate::assemble::{
    ACK, ATN, COMMAND, DATA_IN, DATA_OUT, MSG_IN, MSG_OUT, Program, STATUS, When,
};
use crate::machine::*;

pub const RAM: u32 = BARS.ram;

pub const POS: u32 = 0x1000;
pub const DONE_POS: u32 = 0x1004;
pub const SAVED: u32 = 0x1008;
pub const PM_ADDR: u32 = 0x100c;
pub const TARGET_TABLE_ADDR: u32 = 0x1010;
pub const SCRATCH: u32 = 0x1014;
pub const MESSAGE: u32 = 0x1018;
pub const START_QUEUE: u32 = 0x9000;
pub const DONE_QUEUE: u32 = 0xa000;
pub const TARGET_TABLE: u32 = 0x2000;
pub const IDLE: u32 = 0x2100;
pub const TARGETS: u32 = 0x2200;
pub const UNITS: u32 = 0x4000;
pub const TAGS: u32 = 0x8000;
pub const BLOCKS: u32 = 0x1_0000;
/// Where tests may have their buffers.
pub const BUFFERS: u32 = 0x4_0000;

pub const QUEUE_ROOM: u32 = 300;

// A control block.
pub const SELECT: u32 = 0x00;
pub const MSG_OUT_ENTRY: u32 = 0x08;
pub const COMMAND_ENTRY: u32 = 0x10;
pub const SAVED_POINTER: u32 = 0x18;
pub const STATUS_WORD: u32 = 0x1c;
pub const PM_ENTRY: u32 = 0x20;
pub const PM_RETURN: u32 = 0x28;
pub const DATA: u32 = 0x40;
pub const PIECES: u32 = 16;
pub const MESSAGE_BYTES: u32 = 0xc0;
pub const CDB: u32 = 0xd0;
pub const LAST_POINTER: u32 = 0xe0;
pub const GO_START: u32 = 0xf8;
pub const GO_RESTART: u32 = 0xfc;

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
