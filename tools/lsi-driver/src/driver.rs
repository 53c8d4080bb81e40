//! The part of a driver on the CPU: control blocks, queues of its SCRIPTS program, completions, residuals.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "for tests, which end when it surprises"
)]

use crate::assemble::{ACK, ATN, MSG_OUT, Program, When};
use crate::offsets::*;
pub use crate::program::BUFFERS;
use crate::program::*;
use crate::slot::Slot;

/// A command to submit.
pub struct Order {
    pub target: u32,
    pub lun: u8,
    /// Below 64.
    pub tag: Option<u8>,
    pub may_disconnect: bool,
    pub cdb: Vec<u8>,
    pub to_initiator: bool,
    pub pieces: Vec<(u32, u32)>,
    /// What follows IDENTIFY and the tag.
    pub more_messages: Vec<u8>,
}

/// A read or write of blocks into one buffer.
pub fn transfer(
    opcode: u8,
    target: u32,
    tag: Option<u8>,
    lba: u32,
    blocks: u16,
    buffer: u32,
) -> Order {
    let mut cdb = vec![opcode, 0];
    cdb.extend(lba.to_be_bytes());
    cdb.push(0);
    cdb.extend(blocks.to_be_bytes());
    cdb.push(0);
    Order {
        target,
        lun: 0,
        tag,
        may_disconnect: true,
        cdb,
        to_initiator: opcode == 0x28,
        pieces: vec![(buffer, u32::from(blocks) * 512)],
        more_messages: vec![],
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    pub block: u32,
    pub status: u8,
    pub residual: u32,
}

pub struct Driver<M> {
    pub machine: M,
    /// SIMPLE QUEUE TAG, or another.
    pub tag_message: u8,
    program: Program,
    queued: u32,
    done: u32,
    blocks: u32,
    orders: Vec<u32>,
}

impl<M: Slot> Driver<M> {
    /// Loads the program into SCRIPTS RAM, prepares registers and queues, and starts it.
    pub fn new(mut machine: M) -> Self {
        let program = program();
        machine.poke(RAM, &program.bytes());
        for (register, bytes, value) in registers(&program) {
            match bytes {
                1 => machine.write8(register, value.to_le_bytes()[0]),
                _ => machine.write32(register, value),
            }
        }
        for (addr, word) in tables(&program) {
            machine.poke32(addr, word);
        }
        for i in 0..QUEUE_ROOM {
            for queue in [START_QUEUE, DONE_QUEUE] {
                machine.poke32(queue + 8 * i, if queue == START_QUEUE { IDLE } else { 0 });
                machine.poke32(queue + 8 * i + 4, queue + 8 * (i + 1));
            }
        }
        let mut driver = Driver {
            machine,
            tag_message: 0x20,
            program,
            queued: 0,
            done: 0,
            blocks: 0,
            orders: Vec::new(),
        };
        let start = driver.program.address("start");
        driver.machine.write32(DSP, start);
        driver.machine.go();
        driver
    }

    /// Puts a command into the start queue and rings the bell. Returns its number.
    pub fn submit(&mut self, order: &Order) -> u32 {
        let number = self.blocks;
        self.blocks += 1;
        let block = BLOCKS + 0x100 * number;
        let m = &mut self.machine;
        let mut message = vec![if order.may_disconnect { 0xc0 } else { 0x80 } | order.lun];
        if let Some(tag) = order.tag {
            message.extend([self.tag_message, tag << 1 | 1]);
        }
        message.extend(&order.more_messages);
        m.poke32(block + SELECT, order.target << 16);
        for (entry, at, bytes) in [
            (MSG_OUT_ENTRY, MESSAGE_BYTES, &message),
            (COMMAND_ENTRY, CDB, &order.cdb),
        ] {
            m.poke32(block + entry, u32::try_from(bytes.len()).unwrap());
            m.poke32(block + entry + 4, block + at);
            m.poke(block + at, bytes);
        }
        let first = PIECES - u32::try_from(order.pieces.len()).unwrap();
        for (i, (addr, len)) in (first..).zip(&order.pieces) {
            m.poke32(block + DATA + 8 * i, *len);
            m.poke32(block + DATA + 8 * i + 4, *addr);
        }
        let pointer = match (order.pieces.is_empty(), order.to_initiator) {
            (true, _) => self.program.address("no_data"),
            (_, true) => self.program.address("data_in") + 8 * first,
            (_, false) => self.program.address("data_out") + 8 * first,
        };
        m.poke32(block + SAVED_POINTER, pointer);
        m.poke32(block + STATUS_WORD, 0xffff);
        m.poke32(block + GO_START, self.program.address("select"));
        m.poke32(block + GO_RESTART, self.program.address("restart"));

        let unit = UNITS + 0x10 * (order.target * 16 + u32::from(order.lun));
        let units = TARGETS + 0x100 * order.target;
        m.poke32(units + 4 * u32::from(order.lun), unit);
        let (reselected, found) = match order.tag {
            Some(tag) => {
                let tags = TAGS + 0x100 * order.target;
                m.poke32(tags + 4 * u32::from(tag), block);
                ("tagged", tags)
            }
            None => ("untagged", block),
        };
        m.poke32(unit, self.program.address(reselected));
        m.poke32(unit + 4, found);
        m.poke32(START_QUEUE + 8 * self.queued, block);
        self.queued += 1;
        self.orders
            .push(order.pieces.iter().map(|(_, len)| len).sum());
        m.write8(ISTAT0, 0x20);
        m.go();
        number
    }

    /// What the interrupt handler finds in the done queue, in that order.
    pub fn completions(&mut self) -> Vec<Done> {
        let mut found = Vec::new();
        let istat = self.machine.read8(ISTAT0);
        if istat & 0x04 != 0 {
            assert!(self.machine.irq_level());
            // A bell that SCRIPTS have not heard yet stays rung.
            self.machine.write8(ISTAT0, istat & 0x20 | 0x04);
        }
        loop {
            let block = self.machine.peek32(DONE_QUEUE + 8 * self.done);
            if block == 0 {
                return found;
            }
            self.done += 1;
            let number = (block - BLOCKS) / 0x100;
            let [host, status, ..] = self.machine.peek32(block + STATUS_WORD).to_le_bytes();
            assert_eq!(host, 1, "SCRIPTS say that it is complete");
            let residual = self.residual(block, self.orders[usize::try_from(number).unwrap()]);
            found.push(Done {
                block: number,
                status,
                residual,
            });
        }
    }

    /// From where the data pointer was left.
    fn residual(&self, block: u32, len: u32) -> u32 {
        let last = self.machine.peek32(block + LAST_POINTER);
        let sum_from = |first: u32| {
            (first..PIECES)
                .map(|i| self.machine.peek32(block + DATA + 8 * i))
                .sum::<u32>()
        };
        if last == self.program.address("no_data") {
            return len;
        }
        let index = |pointer: u32| {
            ["data_in", "data_out"].iter().find_map(|label| {
                let start = self.program.address(label);
                (start..=start + 8 * (PIECES + 1))
                    .contains(&pointer)
                    .then(|| (pointer - start) / 8)
            })
        };
        if last == self.program.address("pm_data") {
            let rest = self.machine.peek32(block + PM_ENTRY) & 0x00ff_ffff;
            return rest + sum_from(index(self.machine.peek32(block + PM_RETURN)).unwrap());
        }
        match index(last) {
            Some(index) if index <= PIECES => sum_from(index),
            _ => 0,
        }
    }

    /// SCRIPTS wait for something to do, and nothing went wrong.
    #[track_caller]
    pub fn expect_well(&mut self) {
        let found = (
            self.machine.read8(ISTAT0) & 0x03,
            self.machine.read8(ISTAT1),
        );
        let (dsp, dsps) = (self.machine.read32(DSP), self.machine.read32(DSPS));
        assert_eq!(
            found,
            (0, 0x02),
            "istat0 (interrupts), istat1 (running); dsp {dsp:#x} dsps {dsps:#x}"
        );
    }

    /// A program that selects a target and sends it a message, such as ABORT.
    pub fn abort_program(&self, target: u32, message_addr: u32, len: usize) -> Program {
        let mut p = Program::at(0x3e00);
        p.select_atn(target, "lost")
            .int(When::NotPhase(MSG_OUT), 0x21);
        p.register(7, 4, SCNTL2, 0x7f);
        p.move_direct(MSG_OUT, len, message_addr)
            .clear(ACK | ATN)
            .wait_disconnect()
            .int(When::Always, 0x22);
        p.label("lost").int(When::Always, 0x23);
        p
    }

    /// Stops SCRIPTS in their wait, and starts another program.
    pub fn interrupt_with(&mut self, program: &Program) {
        self.machine.start(program, 0x3e00);
    }

    /// Goes back to the start queue.
    pub fn restart(&mut self) {
        let start = self.program.address("start");
        self.machine.write32(DSP, start);
        self.machine.go();
    }
}
