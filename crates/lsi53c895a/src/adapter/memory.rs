//! Generations of the guest's memory.
//!
//! The front-end may unmap memory while disks write to it. Tasks that run then keep the map with which they began: each
//! map is a generation, which is dropped with the last of its tasks.

use std::ptr::NonNull;
use std::sync::Arc;

use virtqueue::{GuestMemory, Region, WordAccess};

/// A previous map that tasks still use.
struct RetiredEpoch {
    epoch: u32,
    users: usize,
    _memory: Arc<GuestMemory>,
}

/// The present map, and previous ones that are in use.
pub struct MemoryEpochs {
    map: WordAccess,
    epoch: u32,
    users: usize,
    retired: Vec<RetiredEpoch>,
}

impl MemoryEpochs {
    pub fn new(map: Arc<GuestMemory>) -> Self {
        MemoryEpochs {
            map: WordAccess::new(map),
            epoch: 0,
            users: 0,
            retired: Vec::new(),
        }
    }

    /// Replaces the map. True if memory was removed.
    pub fn replace_map(&mut self, map: Arc<GuestMemory>) -> bool {
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
        let old = std::mem::replace(&mut self.map, WordAccess::new(map));
        if loses_memory {
            if self.users > 0 {
                self.retired.push(RetiredEpoch {
                    epoch: self.epoch,
                    users: self.users,
                    _memory: old.memory().clone(),
                });
            }
            self.epoch = self.epoch.wrapping_add(1);
            self.users = 0;
        }
        loses_memory
    }

    /// Adds a task that uses the present map. Returns the generation, for [`MemoryEpochs::remove_user`].
    pub fn add_user(&mut self) -> u32 {
        self.users += 1;
        self.epoch
    }

    /// Removes a task from its generation.
    pub fn remove_user(&mut self, epoch: u32) {
        if epoch == self.epoch {
            self.users -= 1;
        } else if let Some(index) = self.retired.iter().position(|old| old.epoch == epoch) {
            self.retired[index].users -= 1;
            if self.retired[index].users == 0 {
                self.retired.swap_remove(index);
            }
        }
    }

    /// The contiguous part of `len` bytes at an address; `None` if the first is not mapped.
    pub fn contiguous_part(&self, addr: u64, len: usize) -> Option<(NonNull<u8>, usize)> {
        let (host, here) = self.map.memory().first_contiguous_part(addr, len as u64)?;
        Some((host, usize::try_from(here).unwrap_or(len)))
    }

    /// Reads mapped memory. False, and nothing read, if a part of it is not mapped.
    pub fn read(&self, addr: u64, data: &mut [u8]) -> bool {
        self.map.memory().read(addr, data)
    }

    #[inline]
    pub fn read_word(&mut self, addr: u64) -> Option<u32> {
        self.map.read(addr)
    }

    #[inline]
    pub fn write_word(&mut self, addr: u64, word: u32) -> bool {
        self.map.write(addr, word)
    }

    /// Writes mapped memory. False, and nothing written, if a part of it is not mapped.
    pub fn write(&self, addr: u64, data: &[u8]) -> bool {
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
        let mut memory = MemoryEpochs::new(map(&[]));
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
                memory.replace_map(map(regions)),
                loses_memory,
                "{regions:x?}"
            );
        }
    }
}
