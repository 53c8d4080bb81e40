//! Guest memory that the front-end shared: a table of mapped regions, and the translation of guest addresses to host addresses.
//!
//! A lookup checks an address, and returns memory that lies inside one mapped region, in full. The table never changes: a new memory map
//! is a new [`GuestMemory`], and users of the old one keep it alive. The `owner` of each region maps and unmaps it.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use thiserror::Error;

/// One mapped region of guest memory.
#[derive(Clone)]
pub struct Region {
    /// Its guest physical address.
    pub guest_addr: u64,
    /// Its address in the front-end's own address space, which
    /// the vhost-user protocol uses to name rings.
    pub user_addr: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Its address in this process.
    pub host: *mut u8,
    /// Keeps the mapping alive.
    pub owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `host` is an address and nothing more; this crate dereferences it only under the promise
// that the caller of `GuestMemory::new` made, which does not depend on a thread.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; a shared `Region` offers no access to the memory behind `host`.
unsafe impl Sync for Region {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("guest_addr", &format_args!("{:#x}", self.guest_addr))
            .field("user_addr", &format_args!("{:#x}", self.user_addr))
            .field("len", &format_args!("{:#x}", self.len))
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Error of an invalid memory table, or of an address outside it. Addresses and lengths in bytes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// An empty region.
    #[error("memory region at {guest_addr:#x} has length zero")]
    ZeroLength {
        /// The region's guest address.
        guest_addr: u64,
    },
    /// A region that ends beyond the end of one of the three address spaces.
    #[error(
        "memory region at {guest_addr:#x} of {len:#x} bytes reaches beyond the end of the {space} address space"
    )]
    WrapAround {
        /// The region's guest address.
        guest_addr: u64,
        /// The region's length.
        len: u64,
        /// Which address space: `guest`, `front-end` or `host`.
        space: &'static str,
    },
    /// A region that is mapped at address zero.
    #[error("memory region at {guest_addr:#x} is not mapped (null host address)")]
    NotMapped {
        /// The region's guest address.
        guest_addr: u64,
    },
    /// Two regions claim the same guest addresses.
    #[error(
        "memory regions overlap: one at {first:#x} of {first_len:#x} bytes, one at {second:#x}"
    )]
    Overlap {
        /// Guest address of the lower region.
        first: u64,
        /// Length of the lower region.
        first_len: u64,
        /// Guest address of the higher region.
        second: u64,
    },
    /// An address range that is not inside one region.
    #[error("{len:#x} bytes at guest address {guest_addr:#x} are not inside one memory region")]
    Outside {
        /// First byte of the range.
        guest_addr: u64,
        /// Length of the range.
        len: u64,
    },
}

/// All of a guest's memory: regions sorted by guest address, none empty, none overlapping.
#[derive(Debug)]
pub struct GuestMemory {
    regions: Vec<Region>,
    /// Host address and index of each region, sorted.
    by_host: Vec<(usize, usize)>,
}

impl GuestMemory {
    /// The memory of these regions, in any order. An empty list is a guest without memory:
    /// every lookup fails.
    ///
    /// Regions may repeat front-end addresses (a front-end may map one piece of memory at two
    /// guest addresses), but not guest addresses.
    ///
    /// # Errors
    /// [`MemoryError`] for a region that is empty, not mapped, reaches beyond the end of an address
    /// space, or overlaps another.
    ///
    /// # Safety
    /// For each region, the bytes `host..host + len` stay mapped, readable and writable, as long as
    /// `owner` (or a clone of it) lives, and no code in this process holds a Rust reference to them.
    pub unsafe fn new(mut regions: Vec<Region>) -> Result<GuestMemory, MemoryError> {
        for region in &regions {
            check_region_is_mapped_and_fits(region)?;
        }
        regions.sort_by_key(|region| region.guest_addr);
        for pair in regions.windows(2) {
            let (low, high) = (&pair[0], &pair[1]);
            if high.guest_addr - low.guest_addr < low.len {
                return Err(MemoryError::Overlap {
                    first: low.guest_addr,
                    first_len: low.len,
                    second: high.guest_addr,
                });
            }
        }
        let numbered = regions.iter().enumerate();
        let mut by_host: Vec<_> = numbered
            .map(|(index, region)| (region.host.addr(), index))
            .collect();
        by_host.sort_unstable();
        Ok(GuestMemory { regions, by_host })
    }

    /// The host address of `len` bytes at `guest_addr`, all of them inside one region.
    /// For memory that must be contiguous, such as rings.
    ///
    /// The pointer is good as long as the region's owner lives.
    ///
    /// # Errors
    /// [`MemoryError::Outside`] when no single region holds the whole range.
    pub fn host_addr_of_range(
        &self,
        guest_addr: u64,
        len: u64,
    ) -> Result<NonNull<u8>, MemoryError> {
        Ok(self.host_addr_of_range_with_owner(guest_addr, len)?.0)
    }

    /// As [`host_addr_of_range`](Self::host_addr_of_range), with the region's owner, for callers that keep the pointer.
    pub(crate) fn host_addr_of_range_with_owner(
        &self,
        guest_addr: u64,
        len: u64,
    ) -> Result<(NonNull<u8>, &Arc<dyn Any + Send + Sync>), MemoryError> {
        let mut index = 0;
        match self.first_contiguous_part_with_hint(&mut index, guest_addr, len) {
            Some((host, here)) if here == len => Ok((host, &self.regions[index].owner)),
            _ => Err(MemoryError::Outside { guest_addr, len }),
        }
    }

    /// The guest address that the front-end knows as `user_addr`, or `None` when no region has it.
    /// Of several regions that have it, the one with the lowest guest address counts.
    pub fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr)?;
            (offset < region.len).then(|| region.guest_addr + offset)
        })
    }

    /// The guest address of a host address, or `None` if it is in no region.
    pub(crate) fn host_to_guest(&self, host: *const u8) -> Option<u64> {
        let behind = self
            .by_host
            .partition_point(|(start, _)| *start <= host.addr());
        let (start, index) = self.by_host[..behind].last()?;
        let (region, offset) = (&self.regions[*index], (host.addr() - start) as u64);
        (offset < region.len).then(|| region.guest_addr + offset)
    }

    /// The regions, sorted by guest address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Where region `index` is mapped, for many lookups; any index is allowed: without such a region nothing is found.
    #[inline]
    pub(crate) fn mapping_of_region(&self, index: usize) -> RegionAddresses {
        self.regions
            .get(index)
            .map_or(RegionAddresses::EMPTY, |region| RegionAddresses {
                guest_addr: region.guest_addr,
                len: region.len,
                host: region.host,
            })
    }

    /// The first contiguous part of a buffer of `len` bytes at `guest_addr`: its host address
    /// and how many of the `len` bytes are there. The rest begins at `guest_addr` plus that
    /// number, in the next region if there is one. `None` when `guest_addr` is in no region.
    ///
    /// `hint` is the index of the region that the last lookup found, which is usually found again. Any
    /// value is allowed.
    #[inline]
    pub(crate) fn first_contiguous_part_with_hint(
        &self,
        hint: &mut usize,
        guest_addr: u64,
        len: u64,
    ) -> Option<(NonNull<u8>, u64)> {
        if let Some(region) = self.regions.get(*hint)
            && let Some(part) = part_in_region(region, guest_addr, len)
        {
            return Some(part);
        }
        // The last region that begins at or below the address is the only one that can hold it.
        let index = self
            .regions
            .partition_point(|region| region.guest_addr <= guest_addr)
            .checked_sub(1)?;
        let part = part_in_region(&self.regions[index], guest_addr, len)?;
        *hint = index;
        Some(part)
    }
}

/// Where a region is mapped: its guest addresses and its host address, copied for fast lookups.
#[derive(Clone, Copy)]
pub(crate) struct RegionAddresses {
    guest_addr: u64,
    len: u64,
    host: *mut u8,
}

impl RegionAddresses {
    /// An empty region.
    const EMPTY: RegionAddresses = RegionAddresses {
        guest_addr: 0,
        len: 0,
        host: std::ptr::null_mut(),
    };

    /// The host address of `len` bytes at `guest_addr`, if there is at least one and all are in this region.
    #[inline]
    pub fn host_addr_of_range(self, guest_addr: u64, len: u32) -> Option<*mut u8> {
        let offset = guest_addr.wrapping_sub(self.guest_addr);
        // No bytes wrap to more than any region has.
        if offset >= self.len || u64::from(len).wrapping_sub(1) >= self.len - offset {
            return None;
        }
        // As in `part_in_region`.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "offset < len <= isize::MAX"
        )]
        Some(self.host.wrapping_add(offset as usize))
    }
}

/// The part of `len` bytes at `guest_addr` that is in `region`, if the first byte is.
#[inline]
fn part_in_region(region: &Region, guest_addr: u64, len: u64) -> Option<(NonNull<u8>, u64)> {
    let offset = guest_addr.wrapping_sub(region.guest_addr);
    if offset >= region.len {
        return None;
    }
    // `wrapping_add` because only the promise made to `new` says that this is in bounds; the offset
    // fits a usize since `check_region_is_mapped_and_fits` saw that the region's length does.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "offset < len <= isize::MAX"
    )]
    let host = NonNull::new(region.host.wrapping_add(offset as usize))?;
    Some((host, len.min(region.len - offset)))
}

/// Checks that a region is mapped, is not empty, and ends within the guest's, the front-end's and our address space.
fn check_region_is_mapped_and_fits(region: &Region) -> Result<(), MemoryError> {
    let Region {
        guest_addr,
        user_addr,
        len,
        host,
        ..
    } = *region;
    if len == 0 {
        return Err(MemoryError::ZeroLength { guest_addr });
    }
    if host.is_null() {
        return Err(MemoryError::NotMapped { guest_addr });
    }
    let wraps = |space| MemoryError::WrapAround {
        guest_addr,
        len,
        space,
    };
    // The last byte must have an address; the one after it need not.
    guest_addr.checked_add(len - 1).ok_or(wraps("guest"))?;
    user_addr.checked_add(len - 1).ok_or(wraps("front-end"))?;
    let host_len = isize::try_from(len).map_err(|_| wraps("host"))?;
    host.addr()
        .checked_add(host_len.unsigned_abs())
        .ok_or(wraps("host"))?;
    Ok(())
}
