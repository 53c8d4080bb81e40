//! State of a virtio-blk device that all of its queues share: options, feature bits, capacity, cache mode, limits of merging,
//! and whether writes may stay in a write cache. `config_space.rs` has the configuration space.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::Geometry;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};

use crate::merge::MergeLimits;
use crate::parse::RequestLimits;

/// Longest serial: the response to `GET_ID` has 20 bytes.
pub const SERIAL_BYTES: usize = 20;

/// Largest logical block: the limit of comparable servers, and more than any disk has.
const MAX_BLOCK_BYTES: u32 = 32_768;

/// Default queue size of common front-ends. A driver must not make a chain longer than its queue, whose size is not known when the
/// configuration space is read: the announced number of segments of a request fits this.
const USUAL_QUEUE_SIZE: u16 = 128;

/// Options of a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Logical block size in bytes, a power of two.
    pub logical_block_size: u32,
    /// Number of queues, 1 to 65535.
    pub num_queues: u16,
    /// Maximal queue size, a power of two.
    pub queue_size: u16,
    /// Serial, the response to `GET_ID`, at most [`SERIAL_BYTES`].
    pub serial: String,
    /// The guest cannot write.
    pub read_only: bool,
    /// Every write is stable when it completes, unless the driver turns the write cache on.
    pub write_through: bool,
    /// Whether adjacent requests of one batch are merged.
    pub request_merging: bool,
    /// Limits of a merged request.
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
    /// The limits of merging, which allow none if merging is off.
    fn effective_merge_limits(&self) -> MergeLimits {
        match self.request_merging {
            true => self.merge_limits,
            false => MergeLimits::OFF,
        }
    }
}

/// Error of invalid options.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OptionsError {
    /// Not a power of two, or out of range.
    #[error("logical-block-size={0}: must be a power of two from 512 to {MAX_BLOCK_BYTES}")]
    BlockSize(u32),
    /// The serial is too long.
    #[error("serial has {0} bytes: at most {SERIAL_BYTES} fit")]
    Serial(usize),
    /// There are no queues.
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
    initial_request_limits: RequestLimits,
    /// Capacity in bytes; `initial_request_limits` has the first one.
    capacity_bytes: AtomicU64,
    /// The cache mode in the configuration space: as created, or as a driver last set it.
    cache_mode: AtomicBool,
    /// The driver's features.
    acked_features: AtomicU64,
    /// The write cache that follows from both, read by queues.
    write_cache: AtomicBool,
    /// The limits of merging, in one word: [`MergeLimits::pack`].
    packed_merge_limits: AtomicU64,
}

/// Rounds down to whole blocks.
fn round_down_to_blocks(bytes: u64, block: u32) -> u64 {
    bytes - bytes % u64::from(block)
}

/// Features of a driver that flushes and sets the cache mode: assumed until a driver has chosen.
const CACHE_FEATURES: u64 = 1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_CONFIG_WCE;

impl Device {
    /// A device for a node of this geometry.
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
        let capacity_bytes = round_down_to_blocks(geometry.size, block);
        let initial_request_limits = RequestLimits {
            capacity_bytes,
            block_mask: u64::from(block) - 1,
            max_discard_bytes: geometry.discard.max_bytes,
            read_only: options.read_only,
        };
        let merging = options.effective_merge_limits();
        Ok(Device {
            options,
            geometry,
            initial_request_limits,
            capacity_bytes: AtomicU64::new(capacity_bytes),
            cache_mode: AtomicBool::new(write_back),
            acked_features: AtomicU64::new(CACHE_FEATURES),
            write_cache: AtomicBool::new(write_back),
            packed_merge_limits: AtomicU64::new(merging.pack()),
        })
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &DeviceOptions {
        &self.options
    }

    /// The block sizes and limits of the node.
    pub(crate) fn node_block_limits(&self) -> &Geometry {
        &self.geometry
    }

    /// The capacity that the guest sees, in bytes.
    #[must_use]
    #[inline]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// Sets the capacity to `size`, the node's new size in bytes, rounded down to whole blocks. Queues check against it from
    /// their next batch of requests on; requests in flight continue. True if the capacity that the guest sees has changed.
    pub fn resize(&self, size: u64) -> bool {
        let capacity = round_down_to_blocks(size, self.options.logical_block_size);
        self.capacity_bytes.swap(capacity, Ordering::Relaxed) != capacity
    }

    /// Limits that requests are checked against, as of the device's creation. Of them only the capacity ever changes: see
    /// [`Device::resize`] and [`Device::capacity_bytes`].
    pub(crate) fn initial_request_limits(&self) -> RequestLimits {
        self.initial_request_limits
    }

    /// Maximal number of data segments of a request: a chain as long as the queue, less header and status.
    #[must_use]
    pub fn max_segments(&self) -> u32 {
        u32::from(self.options.queue_size.min(USUAL_QUEUE_SIZE))
            .saturating_sub(2)
            .max(1)
    }

    /// The device's own feature bits, without those of the transport and the ring.
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

    /// Sets the features that the driver has accepted. Without `FLUSH` it cannot flush, so every write must be stable;
    /// without `CONFIG_WCE` it does not know that there is a cache mode, and the device's own counts.
    pub fn set_features(&self, acked: u64) {
        self.acked_features.store(acked, Ordering::Relaxed);
        self.update_write_cache();
    }

    /// Resets the device.
    pub fn reset(&self) {
        self.acked_features.store(CACHE_FEATURES, Ordering::Relaxed);
        self.set_cache_mode(!self.options.write_through);
    }

    /// The cache mode in the configuration space. It outlives a connection: a front-end that reconnects does not set it again,
    /// while its guest relies on it.
    #[must_use]
    pub fn is_write_back(&self) -> bool {
        self.cache_mode.load(Ordering::Relaxed)
    }

    /// Sets the cache mode, as the driver has chosen it here or in the process before a live upgrade.
    pub fn set_cache_mode(&self, write_back: bool) {
        self.cache_mode.store(write_back, Ordering::Relaxed);
        self.update_write_cache();
    }

    /// Changes the limits of merging, from the next batch of each queue on.
    pub fn set_merge_limits(&self, limits: MergeLimits) {
        self.packed_merge_limits
            .store(limits.pack(), Ordering::Relaxed);
    }

    /// The limits of merging, read once per batch.
    #[inline]
    pub(crate) fn merge_limits(&self) -> MergeLimits {
        MergeLimits::unpack(self.packed_merge_limits.load(Ordering::Relaxed))
    }

    /// Recomputes whether writes may be cached, from the driver's features and the cache mode.
    fn update_write_cache(&self) {
        let acked = self.acked_features.load(Ordering::Relaxed);
        let has = |bit: u32| acked & 1 << bit != 0;
        let mode = if has(VIRTIO_BLK_F_CONFIG_WCE) {
            self.is_write_back()
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
    pub fn is_write_cache_enabled(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }
}
