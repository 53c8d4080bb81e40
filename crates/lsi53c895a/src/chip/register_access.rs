//! Reads and writes of registers with their side effects (manual, chapter 4).
//!
//! `read_register` and `write_register` serve the CPU, SCRIPTS and the chip's own DMA alike. They change state and
//! return: nothing runs from in here, so a write that comes out of a running program cannot re-enter it.

use crate::chip::Chip;
use crate::chip::register_effects;
use crate::chip::registers::*;
use crate::chip::scripts::ScriptsCpuState;
use crate::chip::scsi_bus::TargetStage;

impl Chip {
    /// One byte, with the side effects of reading it.
    #[inline]
    pub(crate) fn read_register(&mut self, at: u8) -> u8 {
        if register_effects::reads_without_effect(at) {
            return self.regs.get(at);
        }
        self.read_with_effects(at)
    }

    /// One byte, with the side effects of writing it.
    #[inline]
    pub(crate) fn write_register(&mut self, at: u8, value: u8) {
        if register_effects::writes_without_effect(at) {
            return self.regs.set(at, value);
        }
        self.write_with_effects(at, value);
    }

    /// Reads a register whose value is computed, or that changes when it is read.
    pub(crate) fn read_with_effects(&mut self, at: u8) -> u8 {
        let enabled = self.enabled_interrupts();
        match at {
            SCNTL1 => self.regs.get(at) | if self.is_connected() { scntl1::CON } else { 0 },
            GPREG => 0x7f,
            SOCL => self.regs.get(at) & !(lines::ACK | lines::ATN) | self.initiator_control_lines(),
            SBCL => self.control_lines(),
            DSTAT => self.interrupts.take_dstat_and_promote(enabled) | dstat::DFE,
            SSTAT0 => {
                // The reset line, while it is held.
                if self.regs.has_bits(SCNTL1, scntl1::RST) {
                    0x02
                } else {
                    0
                }
            }
            SSTAT2 => {
                if self.is_connected() {
                    0
                } else {
                    0x02
                }
            }
            ISTAT0 => self.compute_istat0(),
            ISTAT1 => {
                self.regs.get(at) & istat1::SYNC_IRQD
                    | if self.cpu.state == ScriptsCpuState::Stopped {
                        0
                    } else {
                        istat1::SRUN
                    }
            }
            CTEST0 => 0xff,
            // Each byte lane of the DMA FIFO is empty, none is full.
            CTEST1 => 0xf0,
            CTEST2 => {
                let signalled = self.regs.has_bits(ISTAT0, istat0::SIGP);
                self.regs.set(ISTAT0, self.regs.get(ISTAT0) & !istat0::SIGP);
                self.regs.get(at) & ctest2::PCICIE
                    | ctest2::DACK
                    | ctest2::CM
                    | if self.bars.io != 0 { ctest2::CIO } else { 0 }
                    | if signalled { ctest2::SIGP } else { 0 }
            }
            // What drivers subtract from DBC to learn what is in the FIFO.
            DFIFO => self.regs.get(DBC),
            CTEST5 => self.regs.get(at) & !0x03 | self.regs.get(DBC + 1) & 0x03,
            CTEST6 | DFBC => 0,
            SCRATCHA..DMODE if self.regs.has_bits(CTEST2, ctest2::PCICIE) => {
                byte_of_word(self.bars.registers, at - SCRATCHA)
            }
            SCRATCHB..SCRATCHC if self.regs.has_bits(CTEST2, ctest2::PCICIE) => {
                byte_of_word(self.bars.ram, at - SCRATCHB)
            }
            SIST0 => self.interrupts.take_sist0_and_promote(enabled),
            SIST1 => self.interrupts.take_sist1_and_promote(enabled),
            STEST0 => self.regs.get(SCID) << 4,
            // Low voltage differential, and the clock's multiplier is locked.
            STEST4 => 0xe0,
            SBDL => self.message_byte_on_data_lines(),
            _ => self.regs.get(at),
        }
    }

    /// Writes a register that ignores or changes some bits, or that starts, resets or interrupts something.
    pub(crate) fn write_with_effects(&mut self, at: u8, value: u8) {
        match at {
            SCNTL0 => self.regs.set(at, value & !scntl0::START),
            SCNTL1 => {
                let resets = value & scntl1::RST != 0 && !self.regs.has_bits(SCNTL1, scntl1::RST);
                self.regs
                    .set(at, value & !(scntl1::SST | scntl1::IARB | scntl1::CON));
                if resets {
                    self.begin_bus_reset();
                }
            }
            SCNTL2 => self.regs.set(at, value & !(scntl2::WSR | scntl2::WSS)),
            SSID | SBCL | DSTAT | SSTAT0 | SSTAT1 | SSTAT2 => {}
            CTEST0 | CTEST1 | CTEST6 | DFIFO | SIST0 | SIST1 | STEST0 | SIDL | STEST4 | SBDL
            | DFBC => {}
            ISTAT0 => self.write_istat0(value),
            ISTAT1 => self.regs.set(at, value & istat1::SYNC_IRQD),
            CTEST2 => self.regs.set(at, value & ctest2::PCICIE),
            // Clear and flush FIFOs: they are empty.
            CTEST3 => self.regs.set(at, value & 0x03),
            DCNTL => {
                self.regs.set(at, value & !dcntl::STD);
                if value & dcntl::STD != 0 && self.cpu.state == ScriptsCpuState::Stopped {
                    self.start_program();
                }
            }
            STEST3 => self.regs.set(at, value & !0x02),
            STIME1 => {
                self.regs.set(at, value);
                self.timer.set_from_stime1(value);
                self.run_wanted = true;
            }
            SBC..CSBC => {}
            _ => {
                self.regs.set(at, value);
                if at == DSP + 3 && !self.regs.has_bits(DMODE, dmode::MAN) {
                    self.start_program();
                }
            }
        }
    }

    /// The value of ISTAT0: its stored bits, and the state of the bus and of interrupts.
    fn compute_istat0(&self) -> u8 {
        self.regs.get(ISTAT0) & (istat0::ABRT | istat0::SIGP | istat0::SEM | istat0::INTF)
            | if self.is_connected() { istat0::CON } else { 0 }
            | if self
                .interrupts
                .has_fatal_or_enabled_scsi_interrupt(self.enabled_interrupts())
            {
                istat0::SIP
            } else {
                0
            }
            | if self.interrupts.has_dma_interrupt() {
                istat0::DIP
            } else {
                0
            }
    }

    /// Writes ISTAT0: software reset, abort of the program, SIGP, and the semaphore.
    fn write_istat0(&mut self, value: u8) {
        if value & istat0::SRST != 0 {
            self.soft_reset();
            return;
        }
        let before = self.regs.get(ISTAT0);
        // INTF is cleared by writing a one.
        let interrupt_on_the_fly = before & istat0::INTF & !value;
        self.regs.set(
            ISTAT0,
            value & (istat0::ABRT | istat0::SIGP | istat0::SEM) | interrupt_on_the_fly,
        );
        if value & istat0::ABRT != 0 && before & istat0::ABRT == 0 {
            self.raise_dma_interrupt(dstat::ABRT);
        }
        if value & istat0::SIGP != 0 {
            self.run_wanted = true;
        }
    }

    /// The control lines that the chip drives itself: ACK and ATN.
    fn initiator_control_lines(&self) -> u8 {
        let Some(connection) = self.connection() else {
            return 0;
        };
        let ack = if connection.ack_held { lines::ACK } else { 0 };
        ack | if connection.atn { lines::ATN } else { 0 }
    }

    /// The control lines of the SCSI bus, as SBCL shows them: those of the target, and the chip's own.
    fn control_lines(&self) -> u8 {
        let Some(connection) = self.connection() else {
            return 0;
        };
        let req = if connection.stage == TargetStage::Busy {
            0
        } else {
            lines::REQ
        };
        lines::BSY | req | self.initiator_control_lines() | self.regs.get(SSTAT1) & 0x07
    }

    /// The data lines: the next byte of a message that is to be taken.
    fn message_byte_on_data_lines(&self) -> u8 {
        match self.connection() {
            Some(connection) if connection.stage == TargetStage::MessageIn => {
                connection.messages_to_initiator.peek().unwrap_or(0)
            }
            _ => 0,
        }
    }
}

/// The byte of a word that a register at this offset shows.
fn byte_of_word(value: u32, index: u8) -> u8 {
    value.to_le_bytes()[usize::from(index & 3)]
}
