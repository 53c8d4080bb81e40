//! The SCRIPTS processor: fetches and executes instructions, one at a time (manual, chapter 5).
//!
//! An instruction is latched before it runs, together with its progress. So one that has to
//! wait, for the target, for memory or for the next run, continues from there.

mod block_move;
mod fast_path;
mod load_store;
mod memory_move;
mod register_ops;
mod scsi_io;
mod transfer_control;

use crate::chip::Chip;
use crate::chip::host_traits::{PciBus, Targets};
use crate::chip::pause_reason::PauseReason;
use crate::chip::registers::{CCNTL1, DBC, DCNTL, DNAD, DSP, DSPS, SFS, ccntl1, dcntl, dstat};

/// The state of the SCRIPTS processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptsCpuState {
    #[default]
    Stopped,
    /// The next instruction is to be fetched.
    Fetch,
    /// Two words of an instruction are latched, and its third is to be fetched.
    FetchRest,
    /// The latched instruction is to be executed, or continued.
    Execute,
}

/// How far a latched instruction has come that moves many bytes.
#[derive(Clone, Copy, Default)]
pub enum MoveInProgress {
    #[default]
    None,
    Block(block_move::BlockMove),
    Copy(memory_move::MemoryMove),
}

/// The SCRIPTS processor: its state and the latched instruction.
#[derive(Default)]
pub struct ScriptsCpu {
    pub state: ScriptsCpuState,
    /// The address of the latched instruction.
    instruction_addr: u32,
    /// The latched instruction. Its third word is that of the last instruction that had three.
    words: [u32; 3],
    progress: MoveInProgress,
    carry: bool,
}

impl ScriptsCpu {
    /// Stops it, and drops the latched instruction.
    pub fn stop(&mut self) {
        self.state = ScriptsCpuState::Stopped;
        self.progress = MoveInProgress::None;
    }
}

/// Bits 23 to 0, as a signed number.
fn sign_extend_24(word: u32) -> u32 {
    ((word << 8).cast_signed() >> 8).cast_unsigned()
}

impl Chip {
    /// Starts the program at DSP, since DSP was written or STD set. What ran before is forgotten.
    pub(crate) fn start_program(&mut self) {
        self.stop_program();
        self.cpu.state = ScriptsCpuState::Fetch;
        self.run_wanted = true;
    }

    /// Drops the latched instruction and its pending read: memory may have changed when the program continues.
    pub(crate) fn stop_program(&mut self) {
        self.cpu.stop();
        self.discard_pending_read();
    }

    /// Executes or continues one instruction of the program.
    pub(crate) fn step_program<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        if self.cpu.state != ScriptsCpuState::Execute {
            self.fetch_instruction_or_skip_zero_word(host)?;
            // An empty word was passed over.
            if self.cpu.state == ScriptsCpuState::Fetch {
                return Ok(());
            }
        }
        self.execute_latched_instruction(host)?;
        // A write to DSP or ISTAT0 from within the instruction has decided what comes next.
        if self.cpu.state == ScriptsCpuState::Execute {
            self.cpu.state = ScriptsCpuState::Fetch;
            self.cpu.progress = MoveInProgress::None;
            if self.regs.has_bits(DCNTL, dcntl::SSM) {
                self.raise_dma_interrupt(dstat::SSI);
            }
        }
        Ok(())
    }

    /// Latches the instruction at DSP, or the rest of one whose third word had to be waited for.
    #[inline]
    fn fetch_instruction_or_skip_zero_word<H: PciBus>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let at = self.regs.get32(DSP);
        let base = self.regs.get32(SFS);
        let from = |low: u32| u64::from(base) << 32 | u64::from(low);
        if self.cpu.state == ScriptsCpuState::Fetch {
            let near = self.ram_word_pair_at_address(at).filter(|_| base == 0);
            let [first, second] = match near {
                Some(words) => words,
                None => self.load_word_pair(host, from(at))?,
            };
            if first == 0 {
                // An empty word is passed over. Firmware relies on it: a data phase of no bytes in its template.
                self.regs.set32(DSP, at.wrapping_add(4));
                return Ok(());
            }
            self.cpu.instruction_addr = at;
            self.cpu.words[0] = first;
            self.cpu.words[1] = second;
        }
        let [first, second, _] = self.cpu.words;
        let mut next = at.wrapping_add(8);
        if self.has_third_word(first) {
            self.cpu.state = ScriptsCpuState::FetchRest;
            self.cpu.words[2] = self.load_word(host, from(next))?;
            next = next.wrapping_add(4);
        }
        self.update_instruction_registers([first, second], next);
        self.cpu.state = ScriptsCpuState::Execute;
        Ok(())
    }

    /// Stores an instruction in the registers that show it (DBC, DCMD, DSPS, DNAD), and the address of the next one in
    /// DSP.
    #[inline]
    fn update_instruction_registers(&mut self, [first, second]: [u32; 2], next: u32) {
        self.regs.set32(DSP, next);
        // DBC, and DCMD above it.
        self.regs.set32(DBC, first);
        self.regs.set32(DSPS, second);
        self.regs.set32(DNAD, second);
    }

    /// Whether an instruction has three words: memory moves, and direct block moves to 64-bit addresses.
    #[inline]
    fn has_third_word(&self, first: u32) -> bool {
        let direct_block_move = first >> 28 == 0;
        first >> 29 == 0b110 || direct_block_move && self.regs.has_bits(CCNTL1, ccntl1::EN64DBMV)
    }

    /// Executes the latched instruction by its type, in the highest bits of its first word.
    #[inline]
    fn execute_latched_instruction<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let first = self.cpu.words[0];
        match first >> 29 {
            0b111 => self.execute_load_store(host),
            0b100 => self.execute_transfer_control(host),
            0b010 | 0b011 => match first >> 27 & 0x07 {
                0b101.. => {
                    self.execute_register_op();
                    Ok(())
                }
                _ => self.execute_scsi_io(host),
            },
            0b000 | 0b001 => self.execute_block_move(host),
            0b110 => self.execute_memory_move(host),
            _ => Err(self.raise_illegal_instruction()),
        }
    }

    /// The address that an instruction's second word names: absolute, or relative to the next instruction.
    fn address_operand(&self, relative: bool) -> u32 {
        let second = self.cpu.words[1];
        if relative {
            self.regs.get32(DSP).wrapping_add(sign_extend_24(second))
        } else {
            second
        }
    }

    /// Raises the interrupt for an illegal instruction.
    #[cold]
    #[inline(never)]
    fn raise_illegal_instruction(&mut self) -> PauseReason {
        self.raise_dma_interrupt(dstat::IID);
        PauseReason::Stopped
    }
}
