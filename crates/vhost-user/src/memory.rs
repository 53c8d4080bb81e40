//! The guest's memory, which the front-end shares by table or slot by slot.
//!
//! Every change makes a new [`GuestMemory`]; queues and requests in flight hold the one that they
//! started with, and a region is unmapped when its last user is gone.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use unix_socket::passed_fds::{MAX_TOTAL_BYTES, MapError, Mapping};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtqueue::{GuestMemory, MemoryError, Region};

/// Most slots that a front-end may add one by one: the number of other vhost-user servers, far more than any front-end uses.
pub(crate) const MAX_SLOTS: usize = 509;

/// Error of the memory that a front-end shares.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryTableError {
    /// It could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The regions contradict each other.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The slot to be removed does not exist.
    #[error("no region of {size} bytes at guest address {guest_addr:#x} to remove")]
    NoSuchRegion { guest_addr: u64, size: u64 },
    /// It has more bytes than one guest may have.
    #[error(
        "{total} bytes of guest memory, at most {MAX_TOTAL_BYTES} are mapped for one front-end"
    )]
    TooMuch { total: u64 },
    /// It has more slots than were announced.
    #[error("more than {MAX_SLOTS} memory slots")]
    TooManySlots,
}

/// A region of the guest's memory, mapped in this process.
struct MemorySlot {
    guest_addr: u64,
    user_addr: u64,
    len: u64,
    host: *mut u8,
    mapping: Arc<Mapping>,
}

// SAFETY: the address is only a number here; the mapping behind it may be used from any thread.
unsafe impl Send for MemorySlot {}

/// A region that the front-end has shared.
pub(crate) struct SharedRegion<'a> {
    pub description: VhostUserMemoryRegion,
    pub file: BorrowedFd<'a>,
}

/// The regions of one front-end.
#[derive(Default)]
pub(crate) struct MemoryTable {
    slots: Vec<MemorySlot>,
}

impl MemoryTable {
    /// Replaces the table. On an error nothing has changed.
    pub fn replace_all(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
    ) -> Result<Arc<GuestMemory>, MemoryTableError> {
        check_total_bytes(regions.iter().map(|region| region.memory_size))?;
        let slots = regions
            .iter()
            .zip(files)
            .map(|(region, file)| map_memory_slot(region, file));
        self.set_slots_if_valid(slots.collect::<Result<_, _>>()?)
    }

    /// Adds a region. On an error nothing has changed.
    pub fn add_region(
        &mut self,
        region: &VhostUserMemoryRegion,
        file: File,
    ) -> Result<Arc<GuestMemory>, MemoryTableError> {
        if self.slots.len() >= MAX_SLOTS {
            return Err(MemoryTableError::TooManySlots);
        }
        let sizes = self.slots.iter().map(|slot| slot.len);
        check_total_bytes(sizes.chain([region.memory_size]))?;
        let added = map_memory_slot(region, file)?;
        let mut slots = std::mem::take(&mut self.slots);
        slots.push(added);
        match guest_memory(&slots) {
            Ok(memory) => {
                self.slots = slots;
                Ok(memory)
            }
            Err(error) => {
                slots.pop();
                self.slots = slots;
                Err(error)
            }
        }
    }

    /// Removes a region.
    pub fn remove_region(
        &mut self,
        region: &VhostUserMemoryRegion,
    ) -> Result<Arc<GuestMemory>, MemoryTableError> {
        let (guest_addr, size, user_addr) =
            (region.guest_phys_addr, region.memory_size, region.user_addr);
        let same = |slot: &MemorySlot| {
            slot.guest_addr == guest_addr && slot.len == size && slot.user_addr == user_addr
        };
        let index = self
            .slots
            .iter()
            .position(same)
            .ok_or(MemoryTableError::NoSuchRegion { guest_addr, size })?;
        self.slots.swap_remove(index);
        guest_memory(&self.slots)
    }

    /// All regions.
    pub fn regions(&self) -> Vec<SharedRegion<'_>> {
        let regions = self.slots.iter().filter_map(|slot| {
            let (file, mmap_offset) = slot.mapping.file_and_offset()?;
            let description = VhostUserMemoryRegion {
                guest_phys_addr: slot.guest_addr,
                memory_size: slot.len,
                user_addr: slot.user_addr,
                mmap_offset,
            };
            Some(SharedRegion { description, file })
        });
        regions.collect()
    }

    /// Replaces the slots if they make up valid guest memory.
    fn set_slots_if_valid(
        &mut self,
        slots: Vec<MemorySlot>,
    ) -> Result<Arc<GuestMemory>, MemoryTableError> {
        let memory = guest_memory(&slots)?;
        self.slots = slots;
        Ok(memory)
    }
}

/// Checks that regions of these sizes are not too much memory for one front-end.
fn check_total_bytes(sizes: impl Iterator<Item = u64>) -> Result<(), MemoryTableError> {
    let total = sizes.fold(0, u64::saturating_add);
    if total > MAX_TOTAL_BYTES {
        return Err(MemoryTableError::TooMuch { total });
    }
    Ok(())
}

/// The guest memory that these slots make up.
fn guest_memory(slots: &[MemorySlot]) -> Result<Arc<GuestMemory>, MemoryTableError> {
    let regions = slots.iter().map(|slot| Region {
        guest_addr: slot.guest_addr,
        user_addr: slot.user_addr,
        len: slot.len,
        host: slot.host,
        owner: slot.mapping.clone(),
    });
    // SAFETY: `map_memory_slot` mapped host..host+len readable and writable, and the mapping is the owner.
    Ok(Arc::new(unsafe { GuestMemory::new(regions.collect()) }?))
}

/// Maps a region of the file that came with it.
fn map_memory_slot(
    region: &VhostUserMemoryRegion,
    file: File,
) -> Result<MemorySlot, MemoryTableError> {
    let mapping = Mapping::new(file, region.mmap_offset, region.memory_size)?;
    Ok(MemorySlot {
        guest_addr: region.guest_phys_addr,
        user_addr: region.user_addr,
        len: region.memory_size,
        host: mapping.host_addr(),
        mapping: Arc::new(mapping),
    })
}
