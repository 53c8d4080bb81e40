//! Layout of a virtqueue in guest memory (its size and the addresses of its parts), its negotiated features, the limits of sizes, and
//! the lookup of a part's host address.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{RingError, RingPart};
use crate::memory::GuestMemory;

/// The largest queue. The specification allows 32768, but comparable servers stop at 1024, and so do the front-ends that drivers are
/// tested with; one system call takes as many segments, so a chain that fills its queue is still one request.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// The most descriptors of one chain, and of an indirect table. The specification
/// limits a chain to the queue size (section 2.7.5.3.1), Linux guests go beyond it in indirect
/// tables, and 1024 is both the largest queue and the most segments that the kernel
/// takes in one call (`UIO_MAXIOV`), so a longer chain could not be submitted as one request.
pub const MAX_CHAIN_DESCRIPTORS: u16 = 1024;

// A chain without an indirect table may use the whole queue.
const _: () = assert!(MAX_QUEUE_SIZE <= MAX_CHAIN_DESCRIPTORS);

/// Size and addresses of a queue. A packed queue has other parts with as many addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Entries per ring, 1 to [`MAX_QUEUE_SIZE`]; a power of two, unless packed.
    pub size: u16,
    /// Guest address of the descriptor table or (packed) ring, aligned to 16 bytes.
    pub desc: u64,
    /// Guest address of the available ring, aligned to 2 bytes. Packed: of the driver event
    /// suppression area, aligned to 4.
    pub avail: u64,
    /// Guest address of the used ring, aligned to 4 bytes. Packed: of the device event suppression
    /// area, aligned to 4.
    pub used: u64,
}

/// Negotiated features of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFeatures {
    /// `VIRTIO_F_EVENT_IDX`: notifications are enabled by index instead of by flag.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`: a chain may end in an indirect table.
    pub indirect: bool,
    /// `VIRTIO_F_RING_PACKED`: the queue has the packed format.
    pub packed: bool,
}

/// Looks up one part of a queue: its host address, and the owner that keeps it mapped.
pub(crate) fn find_ring_part(
    memory: &GuestMemory,
    ring: RingPart,
    addr: u64,
    len_bytes: usize,
    align: u64,
) -> Result<(NonNull<u8>, Arc<dyn Any + Send + Sync>), RingError> {
    if !addr.is_multiple_of(align) {
        return Err(RingError::Misaligned { ring, addr, align });
    }
    let len = len_bytes as u64;
    let (host, owner) = memory
        .host_addr_of_range_with_owner(addr, len)
        .map_err(|_| RingError::RingOutsideMemory { ring, addr, len })?;
    let host_addr = host.addr().get();
    if !(host_addr as u64).is_multiple_of(align) {
        return Err(RingError::MisalignedMapping {
            ring,
            addr,
            host: host_addr,
            align,
        });
    }
    Ok((host, Arc::clone(owner)))
}
