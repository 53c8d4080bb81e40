//! The device: state that all of its queues share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::Geometry;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};

use crate::merge::MergeLimits;
use crate::parse::Checks;

/// Longest serial: the answer to `GET_ID` has 20 bytes.
pub const SERIAL_BYTES: usize = 20;

/// Largest logical block: what the field's servers take, and more than any disk has.
const MAX_BLOCK_BYTES: u32 = 32_768;

/// Queue size of the field's front-ends unless told otherwise. A driver must not make a chain longer
/// than its queue, and we do not know how long that will be: the number of segments that a request
/// may have is announced to fit this.
const USUAL_QUEUE_SIZE: u16 = 128;

/// How a device shows a node to its guest.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Bytes of the guest's block, a power of two.
    pub logical_block_size: u32,
    /// Queues, 1 to 65535.
    pub num_queues: u16,
    /// Entries that a queue may have at most, a power of two.
    pub queue_size: u16,
    /// What `GET_ID` answers, at most [`SERIAL_BYTES`].
    pub serial: String,
    /// The guest cannot write.
    pub read_only: bool,
    /// Every write is stable when it completes, unless the driver turns the write cache on.
    pub write_through: bool,
    /// Adjacent requests of one batch become one,
    pub request_merging: bool,
    /// as long as it does not grow beyond this.
    pub merge_limits: MergeLimits,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            logical_block_size: 512,
            num_queues: 1,
            queue_size: virtqueue::MAX_QUEUE_SIZE,
            serial: String::new(),
            read_only: false,
            write_through: false,
            request_merging: true,
            merge_limits: MergeLimits::default(),
        }
    }
}

impl DeviceOptions {
    fn merging(&self) -> MergeLimits {
        match self.request_merging {
            true => self.merge_limits,
            false => MergeLimits::OFF,
        }
    }
}

/// Why options cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OptionsError {
    /// Not a power of two, or out of range.
    #[error("logical-block-size={0}: must be a power of two from 512 to {MAX_BLOCK_BYTES}")]
    BlockSize(u32),
    /// Too long.
    #[error("serial has {0} bytes: at most {SERIAL_BYTES} fit")]
    Serial(usize),
    /// None.
    #[error("num-queues=0: a disk needs at least one queue")]
    NoQueues,
    /// Not a power of two, or out of range.
    #[error(
        "queue-size={0}: must be a power of two from 2 to {max}", max = virtqueue::MAX_QUEUE_SIZE)]
    QueueSize(u16),
}

/// One virtio-blk device.
pub struct Device {
    options: DeviceOptions,
    geometry: Geometry,
    checks: Checks,
    /// Bytes that the guest sees; those in `checks` are those that it saw first.
    capacity_bytes: AtomicU64,
    /// The cache mode in the configuration space: as made, or as a driver last set it.
    cache_mode: AtomicBool,
    /// The driver's features.
    acked: AtomicU64,
    /// What follows from both, for the queues to look at.
    write_cache: AtomicBool,
    /// What becomes one request, in one word: [`MergeLimits::pack`].
    merging: AtomicU64,
}

/// A guest sees no part of a block.
fn whole_blocks(bytes: u64, block: u32) -> u64 {
    bytes - bytes % u64::from(block)
}

/// Features of a driver that flushes and sets the cache mode: assumed until one says otherwise.
const CACHE_FEATURES: u64 = 1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_CONFIG_WCE;

impl Device {
    /// Shows a node of this form to a guest.
    ///
    /// # Errors
    /// [`OptionsError`].
    pub fn new(options: DeviceOptions, geometry: Geometry) -> Result<Self, OptionsError> {
        let block = options.logical_block_size;
        if !block.is_power_of_two() || !(512..=MAX_BLOCK_BYTES).contains(&block) {
            return Err(OptionsError::BlockSize(block));
        }
        if options.serial.len() > SERIAL_BYTES {
            return Err(OptionsError::Serial(options.serial.len()));
        }
        if options.num_queues == 0 {
            return Err(OptionsError::NoQueues);
        }
        let size = options.queue_size;
        if !size.is_power_of_two() || !(2..=virtqueue::MAX_QUEUE_SIZE).contains(&size) {
            return Err(OptionsError::QueueSize(size));
        }
        let write_back = !options.write_through;
        let capacity_bytes = whole_blocks(geometry.size, block);
        let checks = Checks {
            capacity_bytes,
            block_mask: u64::from(block) - 1,
            max_discard_bytes: geometry.discard.max_bytes,
            read_only: options.read_only,
        };
        let merging = options.merging();
        Ok(Device {
            options,
            geometry,
            checks,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            cache_mode: AtomicBool::new(write_back),
            acked: AtomicU64::new(CACHE_FEATURES),
            write_cache: AtomicBool::new(write_back),
            merging: AtomicU64::new(merging.pack()),
        })
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &DeviceOptions {
        &self.options
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes that the guest sees.
    #[must_use]
    #[inline]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// The node has `size` bytes now. Queues check against it from their next batch of requests on;
    /// requests that they have taken go on. True if the guest sees another capacity than before.
    pub fn resize(&self, size: u64) -> bool {
        let capacity = whole_blocks(size, self.options.logical_block_size);
        self.capacity_bytes.swap(capacity, Ordering::Relaxed) != capacity
    }

    /// What requests are checked against. Only the capacity ever changes: see [`Device::resize`].
    pub(crate) fn checks(&self) -> Checks {
        self.checks
    }

    /// Segments of data that one request may have: what a chain as long as the queue has left beside
    /// header and status.
    #[must_use]
    pub fn max_segments(&self) -> u32 {
        u32::from(self.options.queue_size.min(USUAL_QUEUE_SIZE))
            .saturating_sub(2)
            .max(1)
    }

    /// The device's own feature bits (those of the transport and the ring are not known here).
    #[must_use]
    pub fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_CONFIG_WCE,
            VIRTIO_BLK_F_MQ,
        ];
        if self.options.read_only {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        bits.into_iter()
            .fold(0, |features, bit| features | 1 << bit)
    }

    /// The driver has chosen. Without `FLUSH` it cannot flush, so every write must be stable;
    /// without `CONFIG_WCE` it does not know that there is a cache mode, and the device's own counts.
    pub fn set_features(&self, acked: u64) {
        self.acked.store(acked, Ordering::Relaxed);
        self.update_write_cache();
    }

    /// Back to how it was made, until a driver says otherwise.
    pub fn reset(&self) {
        self.acked.store(CACHE_FEATURES, Ordering::Relaxed);
        self.set_cache_mode(!self.options.write_through);
    }

    /// The cache mode as the configuration space shows it. It outlives a connection: a front-end
    /// that comes back does not say it again, while its guest relies on it.
    #[must_use]
    pub fn cache_mode(&self) -> bool {
        self.cache_mode.load(Ordering::Relaxed)
    }

    /// The driver, or one that another process has served, has chosen this one.
    pub fn set_cache_mode(&self, write_back: bool) {
        self.cache_mode.store(write_back, Ordering::Relaxed);
        self.update_write_cache();
    }

    /// Changes what becomes one request, from the next batch of each queue on.
    pub fn set_merging(&self, limits: MergeLimits) {
        self.merging.store(limits.pack(), Ordering::Relaxed);
    }

    /// What becomes one request; queues look once per batch.
    #[inline]
    pub(crate) fn merging(&self) -> MergeLimits {
        MergeLimits::unpack(self.merging.load(Ordering::Relaxed))
    }

    fn update_write_cache(&self) {
        let acked = self.acked.load(Ordering::Relaxed);
        let has = |bit: u32| acked & 1 << bit != 0;
        let mode = if has(VIRTIO_BLK_F_CONFIG_WCE) {
            self.cache_mode()
        } else {
            !self.options.write_through
        };
        self.write_cache
            .store(has(VIRTIO_BLK_F_FLUSH) && mode, Ordering::Relaxed);
    }

    /// Whether completed writes may still be in a cache: if not, every write is stable when it
    /// completes.
    #[must_use]
    #[inline]
    pub fn write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }
}
