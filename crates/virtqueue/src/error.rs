//! Errors of a virtqueue, and of its in-flight region, that a guest's driver or a front-end causes.
//!
//! One variant per malformation, each with the numbers that were found and the bound that they
//! broke, since an operator has only this message to find the fault in a guest's driver.

use std::fmt;

use thiserror::Error;

/// The parts of a virtqueue: three of a split one (section 2.7), three of a packed one
/// (section 2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPart {
    /// The descriptor table.
    Descriptors,
    /// The available ring, which the driver writes.
    Available,
    /// The used ring, which the device writes.
    Used,
    /// The packed queue's ring of descriptors, which both write.
    DescriptorRing,
    /// The packed queue's driver event suppression area.
    DriverEvent,
    /// The packed queue's device event suppression area.
    DeviceEvent,
}

impl fmt::Display for RingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RingPart::Descriptors => "descriptor table",
            RingPart::Available => "available ring",
            RingPart::Used => "used ring",
            RingPart::DescriptorRing => "descriptor ring",
            RingPart::DriverEvent => "driver event area",
            RingPart::DeviceEvent => "device event area",
        })
    }
}

/// Error that breaks a virtqueue. Addresses are guest physical,
/// lengths in bytes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RingError {
    /// The number of entries is no power of two, zero, or above the maximum.
    #[error("queue size {size}: expected a power of two from 1 to {max}")]
    BadSize {
        /// The requested size.
        size: u16,
        /// The largest valid size.
        max: u16,
    },
    /// The number of descriptors of a packed queue is zero, or above the maximum.
    #[error("queue size {size}: expected 1 to {max}")]
    BadPackedSize {
        /// The requested size.
        size: u16,
        /// The largest valid size.
        max: u16,
    },
    /// The base of a packed queue lies beyond its end.
    #[error(
        "base {base:#x}: expected an index below the queue size {size} in bits 0 to 14 (15: wrap counter)"
    )]
    BadBase {
        /// The lower half of the front-end's base.
        base: u16,
        /// The queue's size.
        size: u16,
    },
    /// A ring's guest address is not aligned as section 2.7 or 2.8 requires.
    #[error("{ring} at {addr:#x}: expected an address aligned to {align} bytes")]
    Misaligned {
        /// Which ring.
        ring: RingPart,
        /// Its guest address.
        addr: u64,
        /// The alignment it needs.
        align: u64,
    },
    /// A ring's guest address is aligned, but the front-end shared the memory at an odd file offset,
    /// so that the host address is not.
    #[error(
        "{ring} at {addr:#x} is mapped at {host:#x}: expected a mapping aligned to {align} bytes"
    )]
    MisalignedMapping {
        /// Which ring.
        ring: RingPart,
        /// Its guest address.
        addr: u64,
        /// Its address in this process.
        host: usize,
        /// The alignment it needs.
        align: u64,
    },
    /// A ring is not, or not in full, inside one memory region.
    #[error("{ring} at {addr:#x} of {len} bytes is not inside one memory region")]
    RingOutsideMemory {
        /// Which ring.
        ring: RingPart,
        /// Its guest address.
        addr: u64,
        /// Its length.
        len: u64,
    },
    /// The driver made more chains available than the queue has entries.
    #[error(
        "available index {avail_idx} is {ahead} entries ahead of {next_avail}: expected at most the queue size {size}"
    )]
    AvailIndexTooFarAhead {
        /// The index found in the available ring.
        avail_idx: u16,
        /// The index that is popped next.
        next_avail: u16,
        /// The distance between the two, modulo 2^16.
        ahead: u16,
        /// The queue's size.
        size: u16,
    },
    /// The available ring names a first descriptor that does not exist.
    #[error(
        "available ring names descriptor {head} as head of a chain: expected less than the queue size {size}"
    )]
    HeadOutOfRange {
        /// The descriptor named.
        head: u16,
        /// The queue's size.
        size: u16,
    },
    /// A descriptor's `next` names a descriptor that does not exist.
    #[error(
        "descriptor {index} is followed by descriptor {next}: expected less than the table size {table_size}"
    )]
    NextOutOfRange {
        /// The descriptor that has the `next`.
        index: u16,
        /// The descriptor that it names.
        next: u16,
        /// How many descriptors the table has.
        table_size: u16,
    },
    /// The chain visits more descriptors than its table has: it runs in a circle.
    #[error("descriptor chain is longer than its table of {table_size} descriptors: it has a loop")]
    ChainLoop {
        /// How many descriptors the table has.
        table_size: u16,
    },
    /// A descriptor refers to an indirect table, which was not negotiated.
    #[error("descriptor {index} is indirect, but VIRTIO_F_INDIRECT_DESC was not negotiated")]
    IndirectNotNegotiated {
        /// The descriptor.
        index: u16,
    },
    /// A descriptor refers to an indirect table and to a next descriptor at the same time.
    #[error("descriptor {index} has both the INDIRECT and the NEXT flag: expected one of them")]
    IndirectWithNext {
        /// The descriptor.
        index: u16,
    },
    /// A packed chain continues, after a direct descriptor, with an indirect one.
    #[error("descriptor {index} is indirect, but not the only one of its chain")]
    IndirectInChain {
        /// The descriptor.
        index: u16,
    },
    /// A packed chain continues with a descriptor that was not made available.
    #[error(
        "descriptor {index} belongs to a chain, but its AVAIL and USED flags do not say available"
    )]
    NotAvailable {
        /// The descriptor.
        index: u16,
    },
    /// A packed chain has more descriptors than the driver can have left.
    #[error(
        "descriptor chain runs into {taken} descriptors that the device has: the ring is of {size}"
    )]
    TooManyDescriptors {
        /// The queue's size.
        size: u16,
        /// Descriptors that the device has.
        taken: u16,
    },
    /// An indirect table refers to a further one.
    #[error("descriptor {index} of an indirect table is indirect itself")]
    NestedIndirect {
        /// The descriptor's index in the indirect table.
        index: u16,
    },
    /// An indirect table is empty, has a fraction of a descriptor, or is too long.
    #[error(
        "indirect table at {addr:#x} of {len} bytes: expected 1 to {max_descriptors} descriptors of 16 bytes"
    )]
    IndirectLength {
        /// The table's address.
        addr: u64,
        /// The table's length.
        len: u32,
        /// The most valid descriptors.
        max_descriptors: u16,
    },
    /// A descriptor of an indirect table is not inside one memory region.
    #[error(
        "descriptor {index} of the indirect table at {addr:#x} is not inside one memory region"
    )]
    IndirectOutsideMemory {
        /// The table's address.
        addr: u64,
        /// The descriptor's index in it.
        index: u16,
    },
    /// A device-readable buffer comes after a device-writable one.
    #[error(
        "descriptor {index} is device-readable after a device-writable one: expected all readable ones first"
    )]
    ReadableAfterWritable {
        /// The descriptor's index in its table.
        index: u16,
    },
    /// A buffer is not, or not in full, inside guest memory.
    #[error("descriptor {index}: buffer at {addr:#x} of {len} bytes is not inside guest memory")]
    BufferOutsideMemory {
        /// The descriptor's index in its table.
        index: u16,
        /// The buffer's address.
        addr: u64,
        /// The buffer's length.
        len: u32,
    },
    /// The buffers of a chain are longer together than a used length can express.
    #[error("descriptor chain of at least {len} bytes: expected at most {max}", max = u32::MAX)]
    ChainTooLong {
        /// The sum of the lengths.
        len: u64,
    },
    /// The chain needs too many host segments.
    #[error("descriptor chain needs more than {max} host segments")]
    TooManySegments {
        /// The most segments.
        max: usize,
    },
    /// The in-flight region is invalid.
    #[error(transparent)]
    Inflight(#[from] InflightError),
}

/// Error of an invalid in-flight region.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InflightError {
    /// Unknown version, or no record at all.
    #[error("the record of requests in flight has version {version}: expected 0 (new) or 1")]
    Version {
        /// The number found.
        version: u16,
    },
    /// The record is of another queue.
    #[error(
        "the record of requests in flight is for {found} descriptors: expected {expected}, as the buffer is laid out"
    )]
    Entries {
        /// The number found.
        found: u16,
        /// The number of entries of each region in the buffer.
        expected: u16,
    },
    /// The queue has more entries than the region.
    #[error(
        "the record of requests in flight has {entries} entries: expected at least the queue size {size}"
    )]
    TooFew {
        /// Entries of the region.
        entries: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// The rings are not those of the record.
    #[error(
        "the used index is {used_idx}, and {recorded} in the record of requests in flight: expected at most \
         the queue size {size} in between; the front-end has to pass a new record after a reset"
    )]
    UsedIndex {
        /// In the used ring.
        used_idx: u16,
        /// In the record.
        recorded: u16,
        /// The queue's size.
        size: u16,
    },
    /// A link leads out of the region, or a position out of the ring.
    #[error("the record of requests in flight names descriptor {index}: expected one below {size}")]
    OutOfRange {
        /// The index found.
        index: u16,
        /// The number of entries.
        size: u16,
    },
    /// A chain contradicts the others, or is longer than the ring.
    #[error(
        "the record of requests in flight has a chain of {descriptors} descriptors at {entry} that cannot be: \
         expected chains without common descriptors, together at most as long as the ring"
    )]
    Chain {
        /// Its first entry.
        entry: u16,
        /// Its number of descriptors.
        descriptors: u16,
    },
}
