//! The in-flight regions of a connection: `GET_INFLIGHT_FD` and `SET_INFLIGHT_FD`.
//!
//! We make a file with a region for each queue; the front-end keeps it while it is disconnected, and passes it to the
//! next server process. Front-ends also pass files of their own, or of another server: they are checked
//! like the guest's memory. The contents of the regions are defined by the queues (`virtqueue`).
//!
//! All regions are laid out for as many descriptors as the first region's `desc_num` has, if that is more than the
//! message's `queue size`: QEMU 10.0 sends its `queue-size` property there and lets
//! the guest use rings of 1024 entries, for which regions of that size are too small.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use unix_socket::passed_fds::{MapError, Mapping};
use vhost::vhost_user::message::VhostUserInflight;
use virtqueue::InflightRegion;
use virtqueue::MAX_QUEUE_SIZE;

/// Regions are made of words.
const ALIGN_BYTES: u64 = 8;

/// Why there is no in-flight region for a queue, or for all of them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InflightBufferError {
    /// Its words are not aligned.
    #[error("it begins at byte {offset} of its file: expected a multiple of {ALIGN_BYTES}")]
    Misaligned { offset: u64 },
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It ends before the queue's region does.
    #[error("it has {has} bytes: expected at least {needs}, for regions of {entries} entries each")]
    NoRoom { has: u64, needs: u64, entries: u16 },
    /// The ring has more entries than the regions.
    #[error("its regions have {entries} entries each: expected at least the queue size {size}")]
    TooFewEntries { entries: u16, size: u16 },
}

/// Makes a file with empty regions for rings of the largest size. It is sealed against truncation.
///
/// # Errors
/// Descriptors or memory have run out.
pub(crate) fn make_inflight_file(
    queues: u16,
    packed: bool,
) -> io::Result<(VhostUserInflight, File)> {
    let len_bytes = region_bytes(packed, MAX_QUEUE_SIZE) * u64::from(queues);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("blockplane inflight", flags)?;
    ftruncate(&file, len_bytes)?;
    let desc_num = MAX_QUEUE_SIZE.to_le_bytes();
    rustix::io::pwrite(&file, &desc_num, InflightRegion::DESC_NUM_OFFSET as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let description = VhostUserInflight::new(len_bytes, 0, queues, MAX_QUEUE_SIZE);
    Ok((description, file.into()))
}

/// Bytes from one queue's region to the next.
fn region_bytes(packed: bool, entries: u16) -> u64 {
    InflightRegion::len_bytes(packed, entries) as u64
}

/// Bytes of a file from `offset` to its end. The length of a device or a pipe is unknown: mapping it fails, or shows that it is
/// long enough.
fn file_len_from(file: &File, offset: u64) -> u64 {
    let metadata = file.metadata().ok().filter(Metadata::is_file);
    metadata.map_or(u64::MAX, |file| file.len().saturating_sub(offset))
}

/// Checks that a buffer has as many bytes as its regions need.
fn check_buffer_large_enough(
    has: u64,
    needs: u64,
    entries: u16,
) -> Result<(), InflightBufferError> {
    match has >= needs {
        true => Ok(()),
        false => Err(InflightBufferError::NoRoom {
            has,
            needs,
            entries,
        }),
    }
}

/// The file with the in-flight regions of all queues.
pub(crate) struct InflightBuffer {
    queues: u16,
    /// Entries of each region.
    entries: u16,
    len_bytes: u64,
    mapping: Arc<Mapping>,
}

impl InflightBuffer {
    /// Maps the file that a front-end passes, for a device with `queues` queues.
    ///
    /// # Errors
    /// [`InflightBufferError`].
    pub fn map(
        description: &VhostUserInflight,
        file: File,
        queues: u16,
    ) -> Result<Self, InflightBufferError> {
        let offset = description.mmap_offset;
        if !offset.is_multiple_of(ALIGN_BYTES) {
            return Err(InflightBufferError::Misaligned { offset });
        }
        // No more than the file has, and than can be used.
        let most = region_bytes(true, u16::MAX) * u64::from(queues);
        let size = description.mmap_size;
        let len_bytes = size.min(most).min(file_len_from(&file, offset));
        check_buffer_large_enough(len_bytes, region_bytes(false, 1), 1)?;
        let mapping = Arc::new(Mapping::new(file, offset, len_bytes)?);
        let entries_in_file = region_in_mapping(&mapping, 0, false, 1).desc_num();
        Ok(InflightBuffer {
            queues: description.num_queues,
            entries: entries_in_file.max(description.queue_size),
            len_bytes,
            mapping,
        })
    }

    /// The front-end's description of the file, and the file.
    pub fn description_and_file(&self) -> Option<(VhostUserInflight, BorrowedFd<'_>)> {
        let (file, offset) = self.mapping.file_and_offset()?;
        let description = VhostUserInflight::new(self.len_bytes, offset, self.queues, self.entries);
        Some((description, file))
    }

    /// Clears the records of all queues, whether the driver that they are of used packed or split rings.
    pub fn clear_records(&self) {
        for packed in [false, true] {
            let regions =
                (0..=u16::MAX).map_while(|queue| self.queue_region(queue, packed, 0).ok());
            regions.for_each(|region| region.clear());
        }
    }

    /// The region of a queue, packed or split as the driver has chosen, with a ring of `size` entries.
    ///
    /// # Errors
    /// [`InflightBufferError`] if there is none that fits.
    pub fn queue_region(
        &self,
        queue: u16,
        packed: bool,
        size: u16,
    ) -> Result<InflightRegion, InflightBufferError> {
        let entries = self.entries;
        if size > entries {
            return Err(InflightBufferError::TooFewEntries { entries, size });
        }
        let start = region_bytes(packed, entries) * u64::from(queue);
        let needs = start + region_bytes(packed, entries);
        check_buffer_large_enough(self.len_bytes, needs, entries)?;
        // Within the mapping, and so fits.
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        Ok(region_in_mapping(&self.mapping, start, packed, entries))
    }
}

/// The region of `entries` entries that begins `start` bytes into the mapping. It must lie within the mapping.
fn region_in_mapping(
    mapping: &Arc<Mapping>,
    start: usize,
    packed: bool,
    entries: u16,
) -> InflightRegion {
    let host = NonNull::new(mapping.host_addr().wrapping_add(start));
    let host = host.expect("a mapping is somewhere");
    // SAFETY: both callers have compared the region's end with the mapped bytes, which the mapping keeps; it is
    // aligned as its offset in the file is; this process has no Rust reference to the bytes.
    unsafe { InflightRegion::new(host, packed, entries, mapping.clone()) }
}
