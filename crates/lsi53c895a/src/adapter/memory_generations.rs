//! Guest memory of the adapter: accesses to the present map, and maps that were replaced while tasks use them.
//!
//! The front-end may unmap memory while disks write to it. Tasks that run then keep the map with which they began. The
//! tasks that began between two removals of memory are a generation; its map is dropped with the last of them.

use std::ptr::NonNull;
use std::sync::Arc;

use virtqueue::{GuestMemory, GuestU32Access, Region};

/// The last map of a previous generation, which tasks still use.
struct RetiredMemoryMap {
    generation: u32,
    users: usize,
    _memory: Arc<GuestMemory>,
}

/// The present map with the number of its generation, and the maps of previous generations that are in use.
pub struct MemoryGenerations {
    map: GuestU32Access,
    generation: u32,
    users: usize,
    retired: Vec<RetiredMemoryMap>,
}

impl MemoryGenerations {
    pub fn new(map: Arc<GuestMemory>) -> Self {
        MemoryGenerations {
            map: GuestU32Access::new(map),
            generation: 0,
            users: 0,
            retired: Vec::new(),
        }
    }

    /// Replaces the map. True if memory was removed: then a new generation begins.
    pub fn replace_map_and_detect_loss(&mut self, map: Arc<GuestMemory>) -> bool {
        // Both are sorted, so one pass is enough. There may be thousands of regions.
        let mut new = map.regions().iter();
        let mut is_kept = |old: &Region| {
            new.by_ref()
                .find(|new| new.guest_addr >= old.guest_addr)
                .is_some_and(|new| {
                    new.guest_addr == old.guest_addr && Arc::ptr_eq(&new.owner, &old.owner)
                })
        };
        let loses_memory = !self.map.memory().regions().iter().all(&mut is_kept);
        let old = std::mem::replace(&mut self.map, GuestU32Access::new(map));
        if loses_memory {
            if self.users > 0 {
                self.retired.push(RetiredMemoryMap {
                    generation: self.generation,
                    users: self.users,
                    _memory: old.memory().clone(),
                });
            }
            self.generation = self.generation.wrapping_add(1);
            self.users = 0;
        }
        loses_memory
    }

    /// Counts a task that uses the present map. Returns its generation, for [`MemoryGenerations::end_use_of_generation`].
    pub fn begin_use_of_current_generation(&mut self) -> u32 {
        self.users += 1;
        self.generation
    }

    /// Ends a task's use of a generation, whose map is dropped with its last task.
    pub fn end_use_of_generation(&mut self, generation: u32) {
        if generation == self.generation {
            self.users -= 1;
        } else if let Some(index) = self
            .retired
            .iter()
            .position(|old| old.generation == generation)
        {
            self.retired[index].users -= 1;
            if self.retired[index].users == 0 {
                self.retired.swap_remove(index);
            }
        }
    }

    /// The contiguous part of `len` bytes at an address; `None` if the first is not mapped.
    pub fn first_contiguous_part(&self, addr: u64, len: usize) -> Option<(NonNull<u8>, usize)> {
        let (host, here) = self.map.memory().first_contiguous_part(addr, len as u64)?;
        Some((host, usize::try_from(here).unwrap_or(len)))
    }

    /// Reads mapped memory. False, and nothing read, if a part of it is not mapped.
    pub fn read_if_mapped(&self, addr: u64, data: &mut [u8]) -> bool {
        self.map.memory().read(addr, data)
    }

    #[inline]
    pub fn read_word_if_mapped(&mut self, addr: u64) -> Option<u32> {
        self.map.read_u32(addr)
    }

    #[inline]
    pub fn write_word_if_mapped(&mut self, addr: u64, word: u32) -> bool {
        self.map.write_u32(addr, word)
    }

    /// Writes mapped memory. False, and nothing written, if a part of it is not mapped.
    pub fn write_if_mapped(&self, addr: u64, data: &[u8]) -> bool {
        self.map.memory().write(addr, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_shrinks_when_a_region_is_removed_or_replaced() {
        let bytes = Arc::new([0u8; 16]);
        let region = |guest_addr| Region {
            guest_addr,
            user_addr: guest_addr,
            len: 16,
            host: bytes.as_ptr().cast_mut(),
            owner: Arc::new(()),
        };
        let map = |regions: &[&Region]| {
            let regions = regions.iter().map(|region| (*region).clone()).collect();
            // SAFETY: the memory is not accessed.
            Arc::new(unsafe { GuestMemory::new(regions) }.unwrap())
        };
        let (a, b, c, d, e) = (region(0), region(16), region(32), region(64), region(80));
        let other = region(32);
        let mut memory = MemoryGenerations::new(map(&[]));
        for (regions, loses_memory) in [
            (&[&b, &d][..], false),
            (&[&a, &b, &c, &d, &e], false),
            (&[&a, &b, &other, &d, &e], true),
            (&[&a, &b, &d, &e], true),
            (&[&b, &d, &e], true),
            (&[&a, &b, &c, &d, &e], false),
            (&[&a, &b, &c, &d], true),
            (&[], true),
            (&[], false),
        ] {
            assert_eq!(
                memory.replace_map_and_detect_loss(map(regions)),
                loses_memory,
                "{regions:x?}"
            );
        }
    }
}
