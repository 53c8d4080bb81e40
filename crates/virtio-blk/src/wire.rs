//! Layout of requests and of the configuration space, as the guest's driver reads and writes them: VIRTIO 1.2, sections 5.2.6 and
//! 5.2.4.

use std::mem::{offset_of, size_of};

/// Every request begins with this, in device-readable memory, little endian.
#[repr(C)]
pub(crate) struct RequestHeader {
    pub kind: u32,
    pub reserved: u32,
    pub sector: u64,
}

impl RequestHeader {
    /// Decodes its two words.
    #[inline]
    pub fn from_words(low: u64, sector: u64) -> Self {
        let low = u64::from_le(low);
        RequestHeader {
            kind: (low & 0xffff_ffff) as u32,
            reserved: (low >> 32) as u32,
            sector: u64::from_le(sector),
        }
    }
}

const _: () = assert!(size_of::<RequestHeader>() == 16);
const _: () = assert!(offset_of!(RequestHeader, sector) == 8);

pub(crate) const HEADER_BYTES: usize = size_of::<RequestHeader>();

/// The one segment of a discard or write-zeroes request, little endian.
#[repr(C)]
pub(crate) struct RangeSegment {
    pub sector: u64,
    pub num_sectors: u32,
    pub flags: u32,
}

const _: () = assert!(size_of::<RangeSegment>() == 16);
const _: () = assert!(offset_of!(RangeSegment, flags) == 12);

pub(crate) const RANGE_BYTES: usize = size_of::<RangeSegment>();

/// Flag of a write-zeroes segment: the space may be deallocated.
pub(crate) const RANGE_FLAG_UNMAP: u32 = 1;

pub(crate) const T_IN: u32 = 0;
pub(crate) const T_OUT: u32 = 1;
pub(crate) const T_FLUSH: u32 = 4;
pub(crate) const T_GET_ID: u32 = 8;
pub(crate) const T_DISCARD: u32 = 11;
pub(crate) const T_WRITE_ZEROES: u32 = 13;
/// Set by very old drivers; has no effect.
pub(crate) const T_BARRIER: u32 = 1 << 31;

/// Status of a request, its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed or invalid.
    IoErr = 1,
    /// Unsupported.
    Unsupported = 2,
}

/// The configuration space, little endian, up to the last field that we fill.
#[repr(C)]
pub(crate) struct ConfigSpace {
    pub capacity: u64,
    pub size_max: u32,
    pub seg_max: u32,
    pub cylinders: u16,
    pub heads: u8,
    pub sectors: u8,
    pub blk_size: u32,
    pub physical_block_exp: u8,
    pub alignment_offset: u8,
    pub min_io_size: u16,
    pub opt_io_size: u32,
    pub wce: u8,
    pub unused: u8,
    pub num_queues: u16,
    pub max_discard_sectors: u32,
    pub max_discard_seg: u32,
    pub discard_sector_alignment: u32,
    pub max_write_zeroes_sectors: u32,
    pub max_write_zeroes_seg: u32,
    pub write_zeroes_may_unmap: u8,
    pub unused1: [u8; 3],
}

const _: () = assert!(offset_of!(ConfigSpace, seg_max) == 12);
const _: () = assert!(offset_of!(ConfigSpace, blk_size) == 20);
const _: () = assert!(offset_of!(ConfigSpace, wce) == 32);
const _: () = assert!(offset_of!(ConfigSpace, num_queues) == 34);
const _: () = assert!(offset_of!(ConfigSpace, max_discard_sectors) == 36);
const _: () = assert!(offset_of!(ConfigSpace, write_zeroes_may_unmap) == 56);
