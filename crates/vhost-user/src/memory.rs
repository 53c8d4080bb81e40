//! The guest's memory as the front-end shares it: by table, or slot by slot.
//!
//! Every change makes a new [`GuestMemory`]; queues and requests in flight hold the one that they
//! started with, and a region is unmapped when nobody holds it any more.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtqueue::{GuestMemory, MemoryError, Region};
use vm_memory::{FileOffset, MmapRegion};

use crate::truncation::{TooManyRegions, TruncationGuard};

/// Slots that a front-end may use one by one: the field's number, far over what any has.
pub(crate) const MAX_SLOTS: usize = 509;

/// Bytes that are mapped for one front-end at most: more than machines have that run guests, and a
/// small part of a process's address space, which all front-ends share.
pub(crate) const MAX_TOTAL_BYTES: u64 = 4 << 40;

/// Why the guest's memory cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
    /// It could not be mapped.
    #[error("cannot map {size} bytes at offset {offset} of the descriptor: {reason}")]
    Map {
        size: u64,
        offset: u64,
        reason: String,
    },
    /// The regions contradict each other.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A slot to be removed does not exist.
    #[error("no region of {size} bytes at guest address {guest_addr:#x} to remove")]
    NoSuchRegion { guest_addr: u64, size: u64 },
    /// More than can be guarded.
    #[error(transparent)]
    TooManyRegions(#[from] TooManyRegions),
    /// More than one guest may have.
    #[error(
        "{total} bytes of guest memory, at most {MAX_TOTAL_BYTES} are mapped for one front-end"
    )]
    TooMuch { total: u64 },
    /// More than we announced.
    #[error("more than {MAX_SLOTS} memory slots")]
    TooManySlots,
}

/// A mapped region; the guard goes before the mapping does.
struct Mapping {
    _guard: TruncationGuard,
    _region: MmapRegion,
}

struct Slot {
    guest_addr: u64,
    user_addr: u64,
    len: u64,
    host: *mut u8,
    mapping: Arc<Mapping>,
}

// SAFETY: the address is only a number here; the mapping behind it may be used from any thread.
unsafe impl Send for Slot {}

/// The regions of one front-end.
#[derive(Default)]
pub(crate) struct MemoryTable {
    slots: Vec<Slot>,
}

impl MemoryTable {
    /// Another table instead of this one. On an error nothing has changed.
    pub fn replace(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
    ) -> Result<Arc<GuestMemory>, TableError> {
        check_total(regions.iter().map(|region| region.memory_size))?;
        let slots = regions
            .iter()
            .zip(files)
            .map(|(region, file)| map(region, file));
        self.try_change(slots.collect::<Result<_, _>>()?)
    }

    /// One more region. On an error nothing has changed.
    pub fn add(
        &mut self,
        region: &VhostUserMemoryRegion,
        file: File,
    ) -> Result<Arc<GuestMemory>, TableError> {
        if self.slots.len() >= MAX_SLOTS {
            return Err(TableError::TooManySlots);
        }
        let sizes = self.slots.iter().map(|slot| slot.len);
        check_total(sizes.chain([region.memory_size]))?;
        let added = map(region, file)?;
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

    /// One region less.
    pub fn remove(
        &mut self,
        region: &VhostUserMemoryRegion,
    ) -> Result<Arc<GuestMemory>, TableError> {
        let (guest_addr, size, user_addr) =
            (region.guest_phys_addr, region.memory_size, region.user_addr);
        let same = |slot: &Slot| {
            slot.guest_addr == guest_addr && slot.len == size && slot.user_addr == user_addr
        };
        let index = self
            .slots
            .iter()
            .position(same)
            .ok_or(TableError::NoSuchRegion { guest_addr, size })?;
        self.slots.swap_remove(index);
        guest_memory(&self.slots)
    }

    fn try_change(&mut self, slots: Vec<Slot>) -> Result<Arc<GuestMemory>, TableError> {
        let memory = guest_memory(&slots)?;
        self.slots = slots;
        Ok(memory)
    }
}

fn check_total(sizes: impl Iterator<Item = u64>) -> Result<(), TableError> {
    let total = sizes.fold(0, u64::saturating_add);
    if total > MAX_TOTAL_BYTES {
        return Err(TableError::TooMuch { total });
    }
    Ok(())
}

fn guest_memory(slots: &[Slot]) -> Result<Arc<GuestMemory>, TableError> {
    let regions = slots.iter().map(|slot| Region {
        guest_addr: slot.guest_addr,
        user_addr: slot.user_addr,
        len: slot.len,
        host: slot.host,
        owner: slot.mapping.clone(),
    });
    // SAFETY: `map` mapped host..host+len readable and writable, and the mapping is the owner.
    Ok(Arc::new(unsafe { GuestMemory::new(regions.collect()) }?))
}

fn map(region: &VhostUserMemoryRegion, file: File) -> Result<Slot, TableError> {
    let (offset, size) = (region.mmap_offset, region.memory_size);
    let error = |reason: String| TableError::Map {
        size,
        offset,
        reason,
    };
    // A page fault there would wait for whoever serves the file system, as long as that likes.
    let file_system = rustix::fs::fstatfs(&file).map_err(|errno| error(errno.to_string()))?;
    if i128::from(file_system.f_type) == FUSE_SUPER_MAGIC {
        return Err(error(
            "it lies on a FUSE file system; share memory from a memfd, tmpfs or hugetlbfs".into(),
        ));
    }
    // Huge pages can only be mapped whole; their file system says how large they are.
    let stat = rustix::fs::fstat(file.as_fd()).map_err(|errno| error(errno.to_string()))?;
    let page = u64::try_from(stat.st_blksize)
        .unwrap_or(0)
        .max(PAGE_BYTES)
        .next_power_of_two();
    let start = offset / page * page;
    let whole = offset
        .checked_add(size)
        .and_then(|end| end.checked_next_multiple_of(page))
        .ok_or_else(|| error("too large".into()))?;
    let end = if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        // A mapping past the end of the file would kill us when touched.
        let file_end = u64::try_from(stat.st_size).unwrap_or(0);
        if offset + size > file_end {
            return Err(error(format!(
                "the file behind it has only {file_end} bytes"
            )));
        }
        whole.min(file_end.max(offset + size))
    } else {
        whole
    };
    let bytes = usize::try_from(end - start).map_err(|_| error("too large".into()))?;
    let mapping = MmapRegion::<()>::build(
        Some(FileOffset::new(file, start)),
        bytes,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_NORESERVE,
    )
    .map_err(|reason| error(reason.to_string()))?;
    // Less than `bytes`, which is a usize.
    let inside = usize::try_from(offset - start).map_err(|_| error("too large".into()))?;
    let host = mapping.as_ptr().wrapping_add(inside);
    let guard = TruncationGuard::new(mapping.as_ptr(), bytes)?;
    Ok(Slot {
        guest_addr: region.guest_phys_addr,
        user_addr: region.user_addr,
        len: size,
        host,
        mapping: Arc::new(Mapping {
            _guard: guard,
            _region: mapping,
        }),
    })
}

const PAGE_BYTES: u64 = 4096;

/// `linux/magic.h`.
const FUSE_SUPER_MAGIC: i128 = 0x6573_5546;
