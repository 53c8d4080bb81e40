//! Access to 32-bit words at any address of guest memory, for devices that follow the guest's pointers from word to word.
//!
//! A word is nearly always in the memory region of the last one, so the last region is cached. As in `access.rs`, a word is read and
//! written as one, and once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::{GuestMemory, RegionAddresses};

/// Bytes of a word.
const WORD_BYTES: u32 = 4;

/// Reads and writes 32-bit words of guest memory, and caches the region of the last one.
pub struct GuestU32Access {
    memory: Arc<GuestMemory>,
    cached_region: RegionAddresses,
}

// SAFETY: the cached address is in a region of the memory, which may be used by any thread.
unsafe impl Send for GuestU32Access {}

impl GuestU32Access {
    /// Access to this memory.
    #[must_use]
    pub fn new(memory: Arc<GuestMemory>) -> GuestU32Access {
        let cached_region = memory.mapping_of_region(0);
        GuestU32Access {
            memory,
            cached_region,
        }
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Reads the little-endian 32-bit word at `guest_addr`. `None` if it is in no region, or not aligned on the host:
    /// [`GuestMemory::read`] may read its bytes.
    #[inline]
    pub fn read_u32(&mut self, guest_addr: u64) -> Option<u32> {
        let word = self.aligned_word_at(guest_addr)?.load(Ordering::Acquire);
        Some(u32::from_le(word))
    }

    /// Writes the word. False, and nothing written, where [`GuestU32Access::read_u32`] returns `None`.
    #[inline]
    #[must_use]
    pub fn write_u32(&mut self, guest_addr: u64, word: u32) -> bool {
        let Some(target) = self.aligned_word_at(guest_addr) else {
            return false;
        };
        target.store(word.to_le(), Ordering::Release);
        true
    }

    /// The aligned word at `guest_addr`.
    #[inline]
    fn aligned_word_at(&mut self, guest_addr: u64) -> Option<&AtomicU32> {
        let host = match self
            .cached_region
            .host_addr_of_range(guest_addr, WORD_BYTES)
        {
            Some(host) => host,
            None => self.find_and_cache_region(guest_addr)?,
        };
        let host = host.cast::<u32>();
        // SAFETY: looked up in a region of the memory, which lives as long as `self`; aligned, and any bits are a word; the guest
        // is to us like another thread.
        host.is_aligned()
            .then(|| unsafe { AtomicU32::from_ptr(host) })
    }

    /// Caches the region of the word at `guest_addr`, and returns the word's host address.
    #[cold]
    fn find_and_cache_region(&mut self, guest_addr: u64) -> Option<*mut u8> {
        let mut region = 0;
        self.memory
            .first_contiguous_part_with_hint(&mut region, guest_addr, WORD_BYTES.into())?;
        self.cached_region = self.memory.mapping_of_region(region);
        self.cached_region
            .host_addr_of_range(guest_addr, WORD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::GuestU32Access;
    use crate::testing::TestMemory;

    #[test]
    fn words_are_found_in_all_regions_and_nowhere_else() {
        let test =
            TestMemory::with_regions(&[(0x1000, 0x1000), (0x2000, 0x1000), (0x8000, 0x1000)]);
        let mut words = GuestU32Access::new(test.guest_memory());
        for addr in [0x8ffc, 0x1000, 0x1ffc, 0x2000, 0x8000] {
            assert!(words.write_u32(addr, 0x0102_0304), "{addr:#x}");
            assert_eq!(test.read(addr, 4), [4, 3, 2, 1]);
            assert_eq!(words.read_u32(addr), Some(0x0102_0304));
        }
        for addr in [
            0,
            0xffc,
            0x1ffe,
            0x3000,
            0x7ffc,
            0x9000,
            u64::MAX - 3,
            u64::MAX,
        ] {
            assert_eq!(words.read_u32(addr), None, "{addr:#x}");
            assert!(!words.write_u32(addr, 1));
        }
        assert_eq!(words.read_u32(0x1001), None, "not aligned");
        test.check_canaries();
    }
}
