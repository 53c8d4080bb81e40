//! The configuration space: its bytes as the driver reads them, and the driver's writes, which can only set the cache mode.
//!
//! Every field of an offered feature has a sensible value: zeroes have crashed Windows guests.

use std::mem::{offset_of, size_of};

use block::SECTOR_BYTES;

use crate::device::Device;
use crate::wire::ConfigSpace;

/// Bytes of the configuration space; reads beyond it return zeroes.
pub const CONFIG_BYTES: usize = size_of::<ConfigSpace>();

const WCE_OFFSET: usize = offset_of!(ConfigSpace, wce);

/// Segments per discard or write-zeroes request: the value that comparable servers announce.
const RANGE_SEGMENTS: u32 = 1;

impl Device {
    /// The configuration space as the driver reads it.
    #[must_use]
    pub fn config_space(&self) -> [u8; CONFIG_BYTES] {
        let geometry = self.node_block_limits();
        let block = self.options().logical_block_size;
        let sectors = |bytes: u64| u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX);
        let in_blocks = |bytes: u32| (bytes / block).max(1);
        let physical = geometry.physical_block_size.max(block);
        let max_range_sectors = sectors(geometry.discard.max_bytes);
        let space = ConfigSpace {
            capacity: self.capacity_bytes() / SECTOR_BYTES,
            size_max: 0,
            seg_max: self.max_segments(),
            cylinders: 0,
            heads: 0,
            sectors: 0,
            blk_size: block,
            // Both are powers of two.
            physical_block_exp: u8::try_from((physical / block).ilog2()).unwrap_or(0),
            alignment_offset: 0,
            min_io_size: u16::try_from(in_blocks(geometry.min_io_size)).unwrap_or(1),
            opt_io_size: in_blocks(geometry.opt_io_size),
            wce: u8::from(self.is_write_back()),
            unused: 0,
            num_queues: self.options().num_queues,
            max_discard_sectors: max_range_sectors,
            max_discard_seg: RANGE_SEGMENTS,
            discard_sector_alignment: sectors(u64::from(geometry.discard.granularity.max(block))),
            max_write_zeroes_sectors: max_range_sectors,
            max_write_zeroes_seg: RANGE_SEGMENTS,
            write_zeroes_may_unmap: 1,
            unused1: [0; 3],
        };
        space.to_bytes()
    }

    /// Applies a write of the driver to the configuration space. False for anything but the write cache mode
    /// set to off or on: nothing else can be written.
    #[must_use]
    pub fn write_config(&self, offset: usize, bytes: &[u8]) -> bool {
        match (offset, bytes) {
            (WCE_OFFSET, [value @ (0 | 1)]) => {
                self.set_cache_mode(*value == 1);
                true
            }
            _ => false,
        }
    }
}

impl ConfigSpace {
    /// The fields in the order and byte order in which the driver reads them.
    fn to_bytes(&self) -> [u8; CONFIG_BYTES] {
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |offset: usize, value: &[u8]| {
            bytes[offset..offset + value.len()].copy_from_slice(value);
        };
        put(offset_of!(Self, capacity), &self.capacity.to_le_bytes());
        put(offset_of!(Self, size_max), &self.size_max.to_le_bytes());
        put(offset_of!(Self, seg_max), &self.seg_max.to_le_bytes());
        put(offset_of!(Self, cylinders), &self.cylinders.to_le_bytes());
        put(offset_of!(Self, heads), &[self.heads, self.sectors]);
        put(offset_of!(Self, blk_size), &self.blk_size.to_le_bytes());
        put(
            offset_of!(Self, physical_block_exp),
            &[self.physical_block_exp, self.alignment_offset],
        );
        put(
            offset_of!(Self, min_io_size),
            &self.min_io_size.to_le_bytes(),
        );
        put(
            offset_of!(Self, opt_io_size),
            &self.opt_io_size.to_le_bytes(),
        );
        put(offset_of!(Self, wce), &[self.wce, self.unused]);
        put(offset_of!(Self, num_queues), &self.num_queues.to_le_bytes());
        put(
            offset_of!(Self, max_discard_sectors),
            &self.max_discard_sectors.to_le_bytes(),
        );
        put(
            offset_of!(Self, max_discard_seg),
            &self.max_discard_seg.to_le_bytes(),
        );
        put(
            offset_of!(Self, discard_sector_alignment),
            &self.discard_sector_alignment.to_le_bytes(),
        );
        put(
            offset_of!(Self, max_write_zeroes_sectors),
            &self.max_write_zeroes_sectors.to_le_bytes(),
        );
        put(
            offset_of!(Self, max_write_zeroes_seg),
            &self.max_write_zeroes_seg.to_le_bytes(),
        );
        put(
            offset_of!(Self, write_zeroes_may_unmap),
            &[self.write_zeroes_may_unmap],
        );
        put(offset_of!(Self, unused1), &self.unused1);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceOptions;
    use block::{DiscardLimits, Geometry};

    /// The geometry of a disk of this size with physical blocks of 4 KiB.
    fn geometry(size: u64) -> Geometry {
        Geometry {
            size,
            logical_block_size: 512,
            physical_block_size: 4096,
            min_io_size: 0,
            opt_io_size: 1 << 20,
            discard: DiscardLimits {
                granularity: 4096,
                max_bytes: 1 << 30,
            },
        }
    }

    fn u32_at(config: &[u8], offset: usize) -> u32 {
        u32::from_le_bytes(config[offset..offset + 4].try_into().unwrap())
    }

    #[test]
    fn every_field_of_an_offered_feature_is_filled() {
        let options = DeviceOptions {
            num_queues: 4,
            ..DeviceOptions::default()
        };
        let config = Device::new(options, geometry(1 << 30))
            .unwrap()
            .config_space();
        assert_eq!(
            u64::from_le_bytes(config[..8].try_into().unwrap()),
            (1 << 30) / 512
        );
        assert_eq!(u32_at(&config, 12), 126, "seg_max");
        assert_eq!(u32_at(&config, 20), 512, "blk_size");
        assert_eq!(config[24], 3, "4096 = 512 << 3");
        assert_eq!(config[26], 1, "min_io_size");
        assert_eq!(u32_at(&config, 28), 2048, "opt_io_size");
        assert_eq!(config[32], 1, "wce: the cache is on and says so");
        assert_eq!(config[34], 4, "num_queues");
        for (offset, expected) in [(36, 1 << 21), (40, 1), (44, 8), (48, 1 << 21), (52, 1)] {
            assert_eq!(u32_at(&config, offset), expected, "offset {offset}");
        }
        assert_eq!(config[56], 1);
    }

    #[test]
    fn the_capacity_is_whole_blocks() {
        let options = DeviceOptions {
            logical_block_size: 4096,
            ..DeviceOptions::default()
        };
        let device = Device::new(options, geometry((1 << 20) + 512)).unwrap();
        assert_eq!(device.capacity_bytes(), 1 << 20);
        assert_eq!(
            device.config_space()[24],
            0,
            "no smaller physical than logical block"
        );
    }

    #[test]
    fn the_write_cache_can_be_set_and_nothing_else() {
        let device = Device::new(DeviceOptions::default(), geometry(1 << 20)).unwrap();
        assert!(device.write_config(32, &[0]));
        assert!(!device.is_write_cache_enabled());
        assert_eq!(device.config_space()[32], 0);
        assert!(!device.write_config(32, &[2]));
        assert!(!device.write_config(32, &[1, 0]));
        assert!(!device.write_config(0, &[0; 8]));
        device.reset();
        assert!(device.is_write_cache_enabled());
    }

    #[test]
    fn a_driver_that_will_not_flush_gets_stable_writes() {
        const FLUSH: u64 = 1 << 9;
        const CONFIG_WCE: u64 = 1 << 11;
        let device = Device::new(DeviceOptions::default(), geometry(1 << 20)).unwrap();
        device.set_features(0);
        assert!(!device.is_write_cache_enabled());
        device.set_features(FLUSH);
        assert!(device.is_write_cache_enabled());
        assert!(device.write_config(32, &[0]));
        device.set_features(FLUSH | CONFIG_WCE);
        assert!(!device.is_write_cache_enabled(), "its own choice stands");
        assert!(device.write_config(32, &[1]));
        device.set_features(CONFIG_WCE);
        assert!(!device.is_write_cache_enabled(), "it cannot flush");
        assert_eq!(
            device.config_space()[32],
            1,
            "a firmware that cannot flush leaves the mode alone"
        );
        device.set_features(FLUSH | CONFIG_WCE);
        assert!(device.is_write_cache_enabled());
        let options = DeviceOptions {
            write_through: true,
            ..DeviceOptions::default()
        };
        let device = Device::new(options, geometry(1 << 20)).unwrap();
        assert_eq!(device.config_space()[32], 0);
        device.set_features(FLUSH);
        assert!(!device.is_write_cache_enabled());
    }
}
