//! DMA mappings: the memory that the front-end lets the device use.
//!
//! Memory with a descriptor is mapped, and is part of the [`GuestMemory`]. Memory without one, or that is read-only or
//! write-only, is a range of addresses that the device accesses by messages to the front-end.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use unix_socket::passed_fds::{MAX_TOTAL_BYTES, MapError, Mapping};
use virtqueue::{GuestMemory, Region};

use crate::error::CommandError;
use crate::limits::PAGE_BYTES;
use crate::wire::{DMA_READ_ALLOWED, DMA_WRITE_ALLOWED, DmaMap};

/// A range of the device's addresses.
struct DmaMapping {
    /// At least 1; the last byte has an address.
    size: u64,
    flags: u32,
    mapping: Option<Arc<Mapping>>,
}

/// All mappings, by address. They do not overlap.
#[derive(Default)]
pub(crate) struct DmaMaps {
    maps: BTreeMap<u64, DmaMapping>,
}

impl DmaMaps {
    /// Adds a mapping, of `max` at most; true if it is mapped in this process. On an error nothing has changed.
    pub fn map(
        &mut self,
        request: &DmaMap,
        fd: Option<OwnedFd>,
        max: u32,
    ) -> Result<bool, CommandError> {
        let DmaMap {
            address,
            size,
            flags,
            ..
        } = *request;
        let read_and_write = DMA_READ_ALLOWED | DMA_WRITE_ALLOWED;
        if flags & read_and_write == 0 || flags & !read_and_write != 0 {
            return Err(CommandError::invalid(format!(
                "DMA_MAP with flags {flags:#x}"
            )));
        }
        if size == 0 || !address.is_multiple_of(PAGE_BYTES) || !size.is_multiple_of(PAGE_BYTES) {
            return Err(CommandError::invalid(format!(
                "DMA_MAP of {size:#x} bytes at {address:#x}: whole pages of {PAGE_BYTES} bytes are expected"
            )));
        }
        let last = address.checked_add(size - 1).ok_or_else(|| {
            CommandError::invalid(format!(
                "DMA_MAP of {size:#x} bytes at {address:#x} ends behind the last address"
            ))
        })?;
        if let Some((other, map)) = self.maps.range(..=last).next_back()
            && address - (*other).min(address) < map.size
        {
            return Err(CommandError::new(
                Errno::EXIST,
                format!(
                    "DMA_MAP of {size:#x} bytes at {address:#x}: {:#x} bytes at {other:#x} are mapped already",
                    map.size
                ),
            ));
        }
        if self.maps.len() >= max as usize {
            return Err(CommandError::new(
                Errno::NOSPC,
                format!("DMA_MAP: {max} regions are mapped, which is the negotiated maximum"),
            ));
        }
        let mapping = match fd {
            Some(fd) if flags == read_and_write => {
                self.check_total_bytes_after_adding(size)?;
                Some(Arc::new(map_file(fd, request)?))
            }
            _ => None,
        };
        let is_mapped_here = mapping.is_some();
        let map = DmaMapping {
            size,
            flags,
            mapping,
        };
        self.maps.insert(address, map);
        Ok(is_mapped_here)
    }

    /// Removes a mapping, which must be given as it was added. Returns a reference to its memory, if it was mapped in this
    /// process: requests may still use it.
    pub fn unmap(
        &mut self,
        address: u64,
        size: u64,
    ) -> Result<Option<Weak<Mapping>>, CommandError> {
        if self.maps.get(&address).is_none_or(|map| map.size != size) {
            return Err(CommandError::new(
                Errno::NOENT,
                format!("DMA_UNMAP of {size:#x} bytes at {address:#x}: there is no such mapping"),
            ));
        }
        let map = self.maps.remove(&address);
        Ok(map.and_then(|map| map.mapping.as_ref().map(Arc::downgrade)))
    }

    /// Removes all mappings. Returns references to the memory that was mapped in this process.
    pub fn unmap_all(&mut self) -> Vec<Weak<Mapping>> {
        let maps = std::mem::take(&mut self.maps).into_values();
        maps.filter_map(|map| map.mapping.as_ref().map(Arc::downgrade))
            .collect()
    }

    /// Whether the device may read (or write) all of these bytes. They may lie in several mappings.
    pub fn is_access_allowed(&self, address: u64, len: u64, flag: u32) -> bool {
        let Some(len) = len.checked_sub(1) else {
            return true;
        };
        let Some(last) = address.checked_add(len) else {
            return false;
        };
        let mut from = address;
        loop {
            let Some((start, map)) = self.maps.range(..=from).next_back() else {
                return false;
            };
            if from - start >= map.size || map.flags & flag == 0 {
                return false;
            }
            let map_last = start + (map.size - 1);
            if map_last >= last {
                return true;
            }
            // Less than `last`, so there is a next address.
            from = map_last + 1;
        }
    }

    /// The memory that is mapped in this process.
    pub fn build_guest_memory(&self) -> Arc<GuestMemory> {
        let regions = self.maps.iter().filter_map(|(address, map)| {
            let mapping = map.mapping.as_ref()?;
            Some(Region {
                guest_addr: *address,
                // vfio-user does not use the front-end's own addresses.
                user_addr: *address,
                len: map.size,
                host: mapping.host_addr(),
                owner: mapping.clone(),
            })
        });
        // SAFETY: each mapping is readable, writable and `len` long while its owner lives, and no Rust
        // reference into it exists.
        let memory = unsafe { GuestMemory::new(regions.collect()) };
        Arc::new(memory.expect("mappings that neither overlap nor wrap around"))
    }

    /// Checks that with `size` bytes more, the mapped memory is not too large.
    fn check_total_bytes_after_adding(&self, size: u64) -> Result<(), CommandError> {
        let mapped = self.maps.values().filter(|map| map.mapping.is_some());
        let total = mapped.map(|map| map.size).fold(size, u64::saturating_add);
        if total > MAX_TOTAL_BYTES {
            return Err(CommandError::new(
                Errno::NOMEM,
                format!(
                    "DMA_MAP: {total} bytes of guest memory, at most {MAX_TOTAL_BYTES} are mapped for one front-end"
                ),
            ));
        }
        Ok(())
    }
}

/// Maps the part of a file that a request names.
fn map_file(fd: OwnedFd, request: &DmaMap) -> Result<Mapping, CommandError> {
    Mapping::new(File::from(fd), request.offset, request.size).map_err(|error| {
        let errno = match &error {
            MapError::Refused { .. } => Errno::INVAL,
            MapError::TooManyRegions { .. } => Errno::NOSPC,
        };
        CommandError::new(errno, format!("DMA_MAP: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: u32 = DMA_READ_ALLOWED | DMA_WRITE_ALLOWED;

    fn request(address: u64, size: u64, flags: u32) -> DmaMap {
        DmaMap {
            argsz: 32,
            flags,
            offset: 0,
            address,
            size,
        }
    }

    fn file(bytes: u64) -> Option<OwnedFd> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        Some(file.into())
    }

    fn errno(result: Result<bool, CommandError>) -> Errno {
        result.unwrap_err().errno
    }

    #[test]
    fn only_whole_pages_within_the_address_space_are_mapped() {
        let mut maps = DmaMaps::default();
        for (address, size, flags) in [
            (0, 0, BOTH),
            (1, 0x1000, BOTH),
            (0, 0x1001, BOTH),
            (0, 0x1000, 0),
            (0, 0x1000, 4 | BOTH),
            (u64::MAX - 0xfff, 0x2000, BOTH),
            (0x2000, u64::MAX - 0xfff, BOTH),
        ] {
            let mapped = maps.map(&request(address, size, flags), None, 9);
            assert_eq!(errno(mapped), Errno::INVAL, "{address:#x} {size:#x}");
        }
        maps.map(&request(u64::MAX - 0xfff, 0x1000, BOTH), None, 9)
            .unwrap();
        assert!(maps.is_access_allowed(u64::MAX, 1, DMA_READ_ALLOWED));
        assert!(!maps.is_access_allowed(u64::MAX, 2, DMA_READ_ALLOWED));
    }

    #[test]
    fn what_overlaps_or_is_too_much_is_refused() {
        let mut maps = DmaMaps::default();
        maps.map(&request(0x4000, 0x2000, BOTH), None, 3).unwrap();
        for (address, size) in [
            (0x4000, 0x2000),
            (0x5000, 0x1000),
            (0x3000, 0x2000),
            (0x3000, 0x9000),
            (0, u64::MAX - 0xfff),
        ] {
            let mapped = maps.map(&request(address, size, BOTH), None, 3);
            assert_eq!(errno(mapped), Errno::EXIST, "{address:#x} {size:#x}");
        }
        maps.map(&request(0x6000, 0x1000, BOTH), None, 3).unwrap();
        maps.map(&request(0x3000, 0x1000, BOTH), None, 3).unwrap();
        let mapped = maps.map(&request(0, 0x1000, BOTH), None, 3);
        assert_eq!(errno(mapped), Errno::NOSPC);
        let mapped = maps.map(&request(1 << 60, 1 << 50, BOTH), file(0), 4);
        assert_eq!(errno(mapped), Errno::NOMEM);
    }

    #[test]
    fn only_memory_that_is_readable_and_writable_is_mapped() {
        let mut maps = DmaMaps::default();
        maps.map(&request(0, 0x1000, DMA_READ_ALLOWED), file(0x1000), 9)
            .unwrap();
        maps.map(&request(0x1000, 0x1000, BOTH), file(0x1000), 9)
            .unwrap();
        maps.map(&request(0x2000, 0x1000, BOTH), None, 9).unwrap();
        let memory = maps.build_guest_memory();
        assert!(memory.host_addr_of_range(0x1000, 0x1000).is_ok());
        assert_eq!(memory.regions().len(), 1);
        assert!(
            maps.is_access_allowed(0, 0x3000, DMA_READ_ALLOWED),
            "in three pieces"
        );
        assert!(maps.is_access_allowed(0x1800, 0x1800, DMA_WRITE_ALLOWED));
        assert!(!maps.is_access_allowed(0x800, 0x1000, DMA_WRITE_ALLOWED));
        assert!(!maps.is_access_allowed(0x2800, 0x801, DMA_READ_ALLOWED));
        assert!(maps.is_access_allowed(1 << 40, 0, DMA_READ_ALLOWED));
    }

    #[test]
    fn a_descriptor_of_a_shorter_file_is_refused() {
        let mut maps = DmaMaps::default();
        let mapped = maps.map(&request(0, 0x2000, BOTH), file(0x1000), 9);
        assert_eq!(errno(mapped), Errno::INVAL);
        assert!(maps.build_guest_memory().regions().is_empty());
    }
}
