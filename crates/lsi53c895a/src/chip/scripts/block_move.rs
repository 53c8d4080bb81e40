//! Block move instructions: move bytes between memory and the SCSI bus, in the phase that the instruction names.
//!
//! If the target asks for another phase, before the first byte or in the middle, that is a phase mismatch: an
//! interrupt, or a jump to a handler of the program's with all that it needs to go on later in the registers RBC, UA,
//! ESA and IA.

use super::{MoveInProgress, ScriptsCpuState, sign_extend_24};
use crate::chip::Chip;
use crate::chip::host_traits::{PciBus, Targets};
use crate::chip::pause_reason::PauseReason;
use crate::chip::registers::*;
use crate::chip::scsi_bus::phase;

/// A block move under way.
#[derive(Clone, Copy)]
pub struct BlockMove {
    phase: u8,
    addr: u64,
    bytes_left: u32,
    bytes_moved: u32,
    /// What RBC has above the count: the instruction's first byte, or the table entry's.
    count_high_byte: u8,
    /// Where the count and the address came from.
    entry_addr: u32,
}

/// Most of one move of messages at a time.
const MESSAGE_CHUNK: usize = 32;

impl Chip {
    /// Executes a block move, or continues one that had to wait.
    #[inline(never)]
    pub(super) fn execute_block_move<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let mut block = match self.cpu.progress {
            MoveInProgress::Block(block) => block,
            _ => self.decode_block_move_and_set_registers(host)?,
        };
        if block.bytes_left == 0 && block.bytes_moved == 0 {
            return Err(self.raise_illegal_instruction());
        }
        let moved = self.move_remaining_bytes(host, &mut block);
        if moved.is_err() && self.cpu.state == ScriptsCpuState::Execute {
            self.cpu.progress = MoveInProgress::Block(block);
        }
        moved
    }

    /// Moves the remaining bytes of the block, unless the target changes the phase or something must be waited for.
    fn move_remaining_bytes<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        block: &mut BlockMove,
    ) -> Result<(), PauseReason> {
        while block.bytes_left > 0 {
            let requested = self.wait_for_and_latch_phase(host, block.phase)?;
            if requested != block.phase {
                return self.handle_phase_mismatch(block);
            }
            let taken = self.move_chunk(host, block)?;
            block.addr = block.addr.wrapping_add(taken as u64);
            let taken = u32::try_from(taken).expect("no more than was left");
            block.bytes_left -= taken;
            block.bytes_moved += taken;
            self.regs.set24(DBC, block.bytes_left);
            self.regs.set32(DNAD, low32(block.addr));
            if block.phase == phase::MESSAGE_OUT && block.bytes_left == 0 {
                self.lower_atn_and_end_message_out();
            }
            // What was stored may have been a register of the program's own.
            if self.cpu.state != ScriptsCpuState::Execute {
                return Err(PauseReason::Stopped);
            }
            if block.phase == phase::MESSAGE_IN && self.has_sent_last_message_and_will_leave() {
                break;
            }
            if block.bytes_left > 0 {
                self.charge_one_instruction()?;
            }
        }
        self.update_moved_byte_counters(block);
        Ok(())
    }

    /// Decodes address and count: in the instruction, behind a pointer, or in a table at DSA.
    fn decode_block_move_and_set_registers<H: PciBus>(
        &mut self,
        host: &mut H,
    ) -> Result<BlockMove, PauseReason> {
        let [first, second, third] = self.cpu.words;
        let mut block = BlockMove {
            phase: first.to_be_bytes()[0] & 0x07,
            addr: 0,
            bytes_left: first & 0x00ff_ffff,
            bytes_moved: 0,
            count_high_byte: first.to_be_bytes()[0],
            entry_addr: self.cpu.instruction_addr,
        };
        let static_upper_half = u64::from(self.regs.get32(SBMS)) << 32;
        if first & 0x1000_0000 != 0 {
            // Table indirect, whatever bit 29 says.
            block.entry_addr = self.regs.get32(DSA).wrapping_add(sign_extend_24(second));
            let table = u64::from(self.regs.get32(DRS)) << 32 | u64::from(block.entry_addr);
            let [count, low] = self.load_word_pair(host, table)?;
            let high = count.to_be_bytes()[0];
            block.bytes_left = count & 0x00ff_ffff;
            block.count_high_byte = high;
            let upper = if !self.regs.has_bits(CCNTL1, ccntl1::EN64TIBMV) {
                static_upper_half
            } else if self.regs.has_bits(CCNTL1, ccntl1::TIMOD64) {
                u64::from(high) << 32
            } else {
                self.upper_address_by_selector(high)
                    .ok_or(())
                    .map_err(|()| self.raise_illegal_instruction())?
            };
            block.addr = upper | u64::from(low);
        } else if first & 0x2000_0000 != 0 {
            let low = self.load_word(host, static_upper_half | u64::from(second))?;
            block.addr = static_upper_half | u64::from(low);
        } else if self.regs.has_bits(CCNTL1, ccntl1::EN64DBMV) {
            self.regs.set32(DBMS, third);
            block.addr = u64::from(third) << 32 | u64::from(second);
        } else {
            block.addr = static_upper_half | u64::from(second);
        }
        self.regs.set24(DBC, block.bytes_left);
        self.regs.set32(DNAD, low32(block.addr));
        Ok(block)
    }

    /// The upper half of an address: the register that a table entry selects by a number.
    fn upper_address_by_selector(&self, high: u8) -> Option<u64> {
        let at = match high & 0x1f {
            // SCRATCHC to SCRATCHR.
            index @ 0x00..=0x0f => SCRATCHC + 4 * index,
            0x10 => MMRS,
            0x11 => MMWS,
            0x12 => SFS,
            0x13 => DRS,
            0x14 => SBMS,
            0x15 => DBMS,
            _ => return None,
        };
        Some(u64::from(self.regs.get32(at)) << 32)
    }

    /// Moves as many bytes as go at once, in a phase that both ends agree about. Returns their number.
    fn move_chunk<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        block: &BlockMove,
    ) -> Result<usize, PauseReason> {
        let left = usize::try_from(block.bytes_left).expect("24 bits");
        match block.phase {
            phase::DATA_IN | phase::DATA_OUT => {
                self.collect_guest_memory_and_run_if_full(host, block.addr, left)
            }
            phase::COMMAND => {
                let mut bytes = [0; 16];
                let room = self.cdb_room_bytes();
                let bytes = &mut bytes[..left.min(room)];
                self.load_bytes(host, block.addr, bytes)?;
                self.receive_command_bytes_and_begin_task(host, bytes);
                // What is longer than any command is passed over: firmware sends 32 bytes.
                Ok(left)
            }
            phase::MESSAGE_OUT => {
                let mut bytes = [0; MESSAGE_CHUNK];
                let bytes = &mut bytes[..left.min(MESSAGE_CHUNK)];
                self.load_bytes(host, block.addr, bytes)?;
                for byte in &*bytes {
                    self.receive_message_byte(host, *byte);
                }
                Ok(bytes.len())
            }
            phase::MESSAGE_IN => {
                let Some(connection) = self.connection() else {
                    return Ok(0);
                };
                let mut bytes = [0; MESSAGE_CHUNK];
                let unsent = connection
                    .messages_to_initiator
                    .unsent(left.min(MESSAGE_CHUNK));
                let bytes = &mut bytes[..unsent.len()];
                bytes.copy_from_slice(unsent);
                self.store_bytes(host, block.addr, bytes)?;
                self.update_sfbr_and_sidl(block, bytes);
                if let Some(connection) = self.connection_mut() {
                    connection
                        .messages_to_initiator
                        .mark_sent_and_keep_last_message(bytes.len());
                    connection.ack_held = true;
                }
                Ok(bytes.len())
            }
            phase::STATUS => {
                let Some(connection) = self.connection() else {
                    return Ok(0);
                };
                let status = [connection.status];
                self.store_bytes(host, block.addr, &status)?;
                self.update_sfbr_and_sidl(block, &status);
                self.release_task_and_queue_command_complete(host);
                Ok(1)
            }
            _ => Ok(0),
        }
    }

    /// Stores received bytes in the registers that show them: SFBR has the first byte of a move, SIDL the last.
    fn update_sfbr_and_sidl(&mut self, block: &BlockMove, bytes: &[u8]) {
        if let (Some(first), Some(last)) = (bytes.first(), bytes.last()) {
            if block.bytes_moved == 0 {
                self.regs.set(SFBR, *first);
            }
            self.regs.set(SIDL, *last);
        }
    }

    /// Ends a move of messages to the target: the chip lowers ATN with the last byte, and the target goes on, unless it
    /// lacks the rest of a message.
    fn lower_atn_and_end_message_out(&mut self) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.atn = false;
        if !connection.incoming_message.is_in_message() {
            self.enter_next_phase_or_leave_bus();
        }
    }

    /// Updates the counters of moved bytes that SCRIPTS and drivers may look at afterwards.
    fn update_moved_byte_counters(&mut self, block: &BlockMove) {
        self.regs.set24(SBC, block.bytes_moved);
        if phase::is_data_phase(block.phase) {
            self.regs
                .set32(CSBC, self.regs.get32(CSBC).wrapping_add(block.bytes_moved));
        }
    }

    /// Ends a block move in whose middle the target requests another phase: saves where it was, and jumps or
    /// interrupts.
    fn handle_phase_mismatch(&mut self, block: &BlockMove) -> Result<(), PauseReason> {
        self.update_moved_byte_counters(block);
        // In 40-bit mode the table's upper byte is a part of the address, which may have moved on.
        let has_40_bit_addresses = self
            .regs
            .has_bits(CCNTL1, ccntl1::EN64TIBMV | ccntl1::TIMOD64)
            && block.entry_addr != self.cpu.instruction_addr;
        let high = if has_40_bit_addresses {
            block.addr.to_le_bytes()[4]
        } else {
            block.count_high_byte
        };
        self.regs
            .set32(RBC, u32::from(high) << 24 | block.bytes_left);
        self.regs.set32(UA, low32(block.addr));
        self.regs.set32(ESA, block.entry_addr);
        self.regs.set32(IA, self.cpu.instruction_addr);
        let jumps = self.regs.has_bits(CCNTL0, ccntl0::ENPMJ)
            && (phase::is_data_phase(block.phase) || self.regs.has_bits(CCNTL0, ccntl0::ENNDJ));
        if !jumps {
            self.raise_scsi_interrupt(sist0::MA, 0);
            return Err(PauseReason::Stopped);
        }
        // By direction, or by whether half a word is left over, which never happens here.
        let to_second_handler =
            self.regs.has_bits(CCNTL0, ccntl0::PMJCTL) && phase::is_to_initiator(block.phase);
        self.regs.set32(
            DSP,
            self.regs
                .get32(if to_second_handler { PMJAD2 } else { PMJAD1 }),
        );
        Ok(())
    }
}

/// The lower half of an address.
fn low32(addr: u64) -> u32 {
    let [a, b, c, d, ..] = addr.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
