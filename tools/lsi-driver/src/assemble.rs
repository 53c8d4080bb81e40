//! A tiny assembler for SCRIPTS: one function per instruction, words as the manual's chapter 5 lays them out.

#![allow(
    missing_docs,
    reason = "instructions, phases and signals have the manual's names"
)]

use std::collections::HashMap;

pub const DATA_OUT: u32 = 0;
pub const DATA_IN: u32 = 1;
pub const COMMAND: u32 = 2;
pub const STATUS: u32 = 3;
pub const MSG_OUT: u32 = 6;
pub const MSG_IN: u32 = 7;

pub const ATN: u32 = 1 << 3;
pub const ACK: u32 = 1 << 6;
pub const CARRY: u32 = 1 << 10;

/// What a transfer control instruction looks at.
#[derive(Clone, Copy)]
pub enum When {
    Always,
    /// Waits for the target's next REQ.
    Phase(u32),
    NotPhase(u32),
    /// Does not wait.
    IfPhase(u32),
    /// SFBR, without the bits of the mask.
    Data(u32, u32),
    NotData(u32, u32),
    Carry,
    NotCarry,
}

impl When {
    fn bits(self) -> u32 {
        const TRUE: u32 = 1 << 19;
        match self {
            When::Always => TRUE,
            When::Phase(phase) => TRUE | 1 << 17 | 1 << 16 | phase << 24,
            When::NotPhase(phase) => 1 << 17 | 1 << 16 | phase << 24,
            When::IfPhase(phase) => TRUE | 1 << 17 | phase << 24,
            When::Data(data, mask) => TRUE | 1 << 18 | mask << 8 | data,
            When::NotData(data, mask) => 1 << 18 | mask << 8 | data,
            When::Carry => TRUE | 1 << 21,
            When::NotCarry => 1 << 21,
        }
    }
}

/// A program that is to stand at an address.
pub struct Program {
    base: u32,
    pub words: Vec<u32>,
    labels: HashMap<&'static str, u32>,
    /// Words that hold a label's address.
    open: Vec<(usize, &'static str)>,
}

impl Program {
    pub fn at(base: u32) -> Self {
        Program {
            base,
            words: Vec::new(),
            labels: HashMap::new(),
            open: Vec::new(),
        }
    }

    pub fn here(&self) -> u32 {
        self.base + 4 * u32::try_from(self.words.len()).expect("programs are short")
    }

    pub fn label(&mut self, name: &'static str) -> &mut Self {
        let before = self.labels.insert(name, self.here());
        assert_eq!(before, None, "{name} twice");
        self
    }

    pub fn address(&self, name: &str) -> u32 {
        self.labels[name]
    }

    pub fn raw(&mut self, words: &[u32]) -> &mut Self {
        self.words.extend(words);
        self
    }

    fn with_label(&mut self, first: u32, label: &'static str) -> &mut Self {
        self.open.push((self.words.len() + 1, label));
        self.raw(&[first, 0])
    }

    pub fn move_direct(&mut self, phase: u32, count: usize, addr: u32) -> &mut Self {
        let count = u32::try_from(count).expect("programs are short");
        self.raw(&[phase << 24 | count, addr])
    }

    pub fn move_indirect(&mut self, phase: u32, count: u32, pointer: u32) -> &mut Self {
        self.raw(&[1 << 29 | phase << 24 | count, pointer])
    }

    pub fn move_table(&mut self, phase: u32, offset: u32) -> &mut Self {
        self.raw(&[1 << 28 | phase << 24, offset & 0x00ff_ffff])
    }

    pub fn select_atn(&mut self, target: u32, otherwise: &'static str) -> &mut Self {
        self.with_label(0x4100_0000 | target << 16, otherwise)
    }

    /// Selects a target, and moves messages and a command to it, each of a length and at an address.
    pub fn command(
        &mut self,
        target: u32,
        (message_len, message): (usize, u32),
        (len, command): (usize, u32),
    ) -> &mut Self {
        // Also when there is no such target.
        let next = self.here() + 8;
        self.raw(&[0x4100_0000 | target << 16, next])
            .move_direct(MSG_OUT, message_len, message)
            .move_direct(COMMAND, len, command)
    }

    pub fn select(&mut self, target: u32) -> &mut Self {
        self.raw(&[0x4000_0000 | target << 16, 0])
    }

    pub fn select_table_atn(&mut self, offset: u32, otherwise: &'static str) -> &mut Self {
        self.with_label(0x4300_0000 | offset & 0x00ff_ffff, otherwise)
    }

    pub fn wait_disconnect(&mut self) -> &mut Self {
        self.raw(&[0x4800_0000, 0])
    }

    pub fn wait_reselect(&mut self, otherwise: &'static str) -> &mut Self {
        self.with_label(0x5000_0000, otherwise)
    }

    pub fn set(&mut self, what: u32) -> &mut Self {
        self.raw(&[0x5800_0000 | what, 0])
    }

    pub fn clear(&mut self, what: u32) -> &mut Self {
        self.raw(&[0x6000_0000 | what, 0])
    }

    /// Opcode 5, 6 or 7 with an operator (0 move, 1 shl, 2 or, 3 xor, 4 and, 5 shr, 6 add, 7 addc).
    pub fn register(&mut self, opcode: u32, operator: u32, register: u8, data: u8) -> &mut Self {
        let what = 1 << 30 | opcode << 27 | operator << 24;
        let [low, high] = [register & 0x7f, register & 0x80].map(u32::from);
        self.raw(&[what | low << 16 | u32::from(data) << 8 | high, 0])
    }

    pub fn jump(&mut self, when: When, label: &'static str) -> &mut Self {
        self.with_label(0x8000_0000 | when.bits(), label)
    }

    pub fn call(&mut self, when: When, label: &'static str) -> &mut Self {
        self.with_label(0x8800_0000 | when.bits(), label)
    }

    pub fn ret(&mut self, when: When) -> &mut Self {
        self.raw(&[0x9000_0000 | when.bits(), 0])
    }

    pub fn int(&mut self, when: When, code: u32) -> &mut Self {
        self.raw(&[0x9800_0000 | when.bits(), code])
    }

    pub fn int_fly(&mut self) -> &mut Self {
        self.raw(&[0x9800_0000 | 1 << 20 | When::Always.bits(), 0])
    }

    pub fn copy(&mut self, count: u32, from: u32, to: u32) -> &mut Self {
        self.raw(&[0xc000_0000 | count, from, to])
    }

    fn load_or_store(&mut self, what: u32, register: u8, count: u32, addr: u32) -> &mut Self {
        self.raw(&[what | u32::from(register) << 16 | count, addr])
    }

    pub fn load(&mut self, register: u8, count: u32, addr: u32) -> &mut Self {
        self.load_or_store(0xe100_0000, register, count, addr)
    }

    pub fn store(&mut self, register: u8, count: u32, addr: u32) -> &mut Self {
        self.load_or_store(0xe000_0000, register, count, addr)
    }

    pub fn load_dsa(&mut self, register: u8, count: u32, offset: u32) -> &mut Self {
        self.load_or_store(0xf100_0000, register, count, offset & 0x00ff_ffff)
    }

    pub fn store_dsa(&mut self, register: u8, count: u32, offset: u32) -> &mut Self {
        self.load_or_store(0xf000_0000, register, count, offset & 0x00ff_ffff)
    }

    /// The bytes, with all labels known.
    pub fn bytes(&self) -> Vec<u8> {
        let mut words = self.words.clone();
        for (at, label) in &self.open {
            words[*at] = self.address(label);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}
