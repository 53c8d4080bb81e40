//! The chip's own reads and writes of memory: programs, tables, messages, commands, status, unmapped data.
//!
//! An address is in one of three places. Accesses to the chip's own windows are executed here, byte by byte, by the
//! functions that serve the CPU. Mapped guest memory is copied by the [`PciBus`]. For other memory an access is started:
//! [`PauseReason::Memory`] ends the step, which is repeated when the reply is there, and finds it. So a step reads
//! before it changes anything, and no step has more than one access under way.

use crate::chip::Chip;
use crate::chip::host_traits::{DmaId, PciBus};
use crate::chip::pause_reason::PauseReason;
use crate::chip::registers::dstat;

/// Most that one access moves.
pub const MAX_ACCESS_BYTES: usize = 4096;

/// Bytes of SCRIPTS RAM.
pub const RAM_BYTES: usize = 8192;

/// The window onto the registers in memory space.
const REGISTER_WINDOW_BYTES: u64 = 0x400;

/// The state of the access to memory without a mapping; there is one at a time.
#[derive(Default)]
pub enum DmaState {
    #[default]
    Idle,
    Reading {
        id: DmaId,
        addr: u64,
        len: usize,
    },
    /// The data that was read, for the step that needs it.
    Ready {
        addr: u64,
        data: Vec<u8>,
    },
    Writing {
        id: DmaId,
    },
    /// It failed: a bus fault.
    Failed,
}

/// What lies at an address: one of the chip's own windows, or other memory.
enum DecodedAddress {
    Register(u8),
    Ram(usize),
    Outside,
}

impl Chip {
    /// The chip's own window that holds all of this range, if one does.
    fn decode_address(&self, addr: u64, len: usize) -> DecodedAddress {
        let within = |base: u32, bytes: u64| {
            let offset = addr.checked_sub(u64::from(base))?;
            let end = offset.checked_add(len as u64)?;
            (base != 0 && end <= bytes).then_some(offset)
        };
        if let Some(offset) = within(self.bars.ram, RAM_BYTES as u64) {
            return DecodedAddress::Ram(usize::try_from(offset).expect("below 8 KiB"));
        }
        if let Some(offset) = within(self.bars.registers, REGISTER_WINDOW_BYTES) {
            return DecodedAddress::Register(offset.to_le_bytes()[0]);
        }
        DecodedAddress::Outside
    }

    /// Two consecutive words of SCRIPTS RAM, which most programs are in, by their PCI address; `None` if the address is
    /// not in it.
    #[inline]
    pub(crate) fn ram_word_pair_at_address(&self, addr: u32) -> Option<[u32; 2]> {
        match self.bars.ram {
            0 => None,
            base => self.ram_word_pair_at_offset(addr.wrapping_sub(base)),
        }
    }

    /// Two consecutive words of SCRIPTS RAM by their offset in it.
    #[inline]
    pub(crate) fn ram_word_pair_at_offset(&self, offset: u32) -> Option<[u32; 2]> {
        let offset = offset as usize;
        if offset > RAM_BYTES - 8 {
            return None;
        }
        let bytes = self.ram[offset..].first_chunk::<8>();
        let [a, b, c, d, e, f, g, h] = *bytes?;
        Some([
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, g, h]),
        ])
    }

    /// Whether this word may be read from guest memory at once: it is in no window of the chip, and no access is
    /// pending.
    #[inline]
    fn can_read_guest_now(&self, addr: u64) -> bool {
        !self.is_own_window(addr) && matches!(self.dma, DmaState::Idle)
    }

    /// Loads a word, as programs have them in tables: mostly from guest memory.
    #[inline]
    pub(crate) fn load_word<H: PciBus>(
        &mut self,
        host: &mut H,
        addr: u64,
    ) -> Result<u32, PauseReason> {
        if self.can_read_guest_now(addr)
            && let Some(word) = host.read_word_if_mapped(addr)
        {
            return Ok(word);
        }
        self.load_word_slow_path(host, addr)
    }

    /// [`Chip::load_word`] from memory of any kind.
    #[cold]
    #[inline(never)]
    fn load_word_slow_path<H: PciBus>(
        &mut self,
        host: &mut H,
        addr: u64,
    ) -> Result<u32, PauseReason> {
        let mut bytes = [0; 4];
        self.load_bytes(host, addr, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Two consecutive words, such as the count and the address in an entry of a table.
    #[inline]
    pub(crate) fn load_word_pair<H: PciBus>(
        &mut self,
        host: &mut H,
        addr: u64,
    ) -> Result<[u32; 2], PauseReason> {
        if let Some(next) = addr.checked_add(4)
            && self.can_read_guest_now(addr)
            && self.can_read_guest_now(next)
            && let Some(first) = host.read_word_if_mapped(addr)
            && let Some(second) = host.read_word_if_mapped(next)
        {
            return Ok([first, second]);
        }
        self.load_word_pair_slow_path(host, addr)
    }

    /// [`Chip::load_word_pair`] from memory of any kind.
    #[cold]
    #[inline(never)]
    fn load_word_pair_slow_path<H: PciBus>(
        &mut self,
        host: &mut H,
        addr: u64,
    ) -> Result<[u32; 2], PauseReason> {
        let mut bytes = [0; 8];
        self.load_bytes(host, addr, &mut bytes)?;
        let [a, b, c, d, e, f, g, h] = bytes;
        Ok([
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, g, h]),
        ])
    }

    /// Whether this address lies in one of the chip's windows.
    #[inline]
    pub(crate) fn is_own_window(&self, addr: u64) -> bool {
        addr >= self.lowest_window
            && !matches!(self.decode_address(addr, 1), DecodedAddress::Outside)
    }

    /// Whether an access to memory has no reply yet.
    pub(crate) fn waits_for_memory(&self) -> bool {
        matches!(
            self.dma,
            DmaState::Reading { .. } | DmaState::Writing { .. }
        )
    }

    /// Discards a pending read and its data; a write goes on.
    pub(crate) fn discard_pending_read(&mut self) {
        if matches!(self.dma, DmaState::Reading { .. } | DmaState::Ready { .. }) {
            self.dma = DmaState::Idle;
        }
    }

    /// Reads at most [`MAX_ACCESS_BYTES`] bytes.
    pub(crate) fn load_bytes<H: PciBus>(
        &mut self,
        host: &mut H,
        addr: u64,
        data: &mut [u8],
    ) -> Result<(), PauseReason> {
        debug_assert!(data.len() <= MAX_ACCESS_BYTES);
        match self.decode_address(addr, data.len()) {
            DecodedAddress::Register(first) => {
                for (i, byte) in data.iter_mut().enumerate() {
                    *byte = self.read_register(first.wrapping_add(i.to_le_bytes()[0]));
                }
                return Ok(());
            }
            DecodedAddress::Ram(offset) => {
                data.copy_from_slice(&self.ram[offset..offset + data.len()]);
                return Ok(());
            }
            DecodedAddress::Outside => {}
        }
        if self.waits_for_memory() {
            return Err(PauseReason::Memory);
        }
        if let DmaState::Ready {
            addr: at,
            data: read,
        } = std::mem::take(&mut self.dma)
            && at == addr
            && read.len() == data.len()
        {
            data.copy_from_slice(&read);
            return Ok(());
        }
        if host.read_if_mapped(addr, data) {
            return Ok(());
        }
        match host.start_dma_read(addr, data.len()) {
            Ok(id) => {
                self.dma = DmaState::Reading {
                    id,
                    addr,
                    len: data.len(),
                };
                Err(PauseReason::Memory)
            }
            Err(_) => Err(self.raise_bus_fault()),
        }
    }

    /// Writes at most [`MAX_ACCESS_BYTES`] bytes. What comes later is the host's answer; the bytes are taken.
    pub(crate) fn store_bytes<H: PciBus>(
        &mut self,
        host: &mut H,
        addr: u64,
        data: &[u8],
    ) -> Result<(), PauseReason> {
        debug_assert!(data.len() <= MAX_ACCESS_BYTES);
        match self.decode_address(addr, data.len()) {
            DecodedAddress::Register(first) => {
                for (i, byte) in data.iter().enumerate() {
                    self.write_register(first.wrapping_add(i.to_le_bytes()[0]), *byte);
                }
                return Ok(());
            }
            DecodedAddress::Ram(offset) => {
                self.ram[offset..offset + data.len()].copy_from_slice(data);
                return Ok(());
            }
            DecodedAddress::Outside => {}
        }
        if self.waits_for_memory() {
            return Err(PauseReason::Memory);
        }
        if host.write_if_mapped(addr, data) {
            return Ok(());
        }
        match host.start_dma_write(addr, data) {
            Ok(id) => {
                self.dma = DmaState::Writing { id };
                Ok(())
            }
            Err(_) => Err(self.raise_bus_fault()),
        }
    }

    /// The register at an address in I/O space. Nothing else of that space can be reached.
    pub(crate) fn register_at_io_address(&self, addr: u64) -> Option<u8> {
        let offset = addr.checked_sub(u64::from(self.bars.io))?;
        (self.bars.io != 0 && offset < 0x100).then(|| offset.to_le_bytes()[0])
    }

    /// Raises the interrupt for a target abort on PCI.
    pub(crate) fn raise_bus_fault(&mut self) -> PauseReason {
        self.raise_dma_interrupt(dstat::BF);
        PauseReason::Stopped
    }

    /// Ends the access that `start_dma_read` (with as many bytes as it has asked for) or `start_dma_write` (with none)
    /// has started. Late replies to accesses that were discarded are ignored.
    pub fn on_dma_done(
        &mut self,
        id: DmaId,
        result: Result<&[u8], crate::chip::host_traits::BusFault>,
    ) {
        self.dma = match (std::mem::take(&mut self.dma), result) {
            (
                DmaState::Reading {
                    id: mine,
                    addr,
                    len,
                },
                Ok(data),
            ) if mine == id && data.len() == len => DmaState::Ready {
                addr,
                data: data.to_vec(),
            },
            (DmaState::Writing { id: mine }, Ok(_)) if mine == id => DmaState::Idle,
            (DmaState::Reading { id: mine, .. } | DmaState::Writing { id: mine }, _)
                if mine == id =>
            {
                DmaState::Failed
            }
            (other, _) => other,
        };
        self.run_wanted = true;
    }
}
