//! Limits of a connection.

/// Data of one message, as we say in the version's capabilities: the protocol's default.
pub(crate) const MAX_DATA_BYTES: u32 = 1 << 20;

/// A message with the most data and the longest fields before it.
pub(crate) const MAX_MESSAGE_BYTES: u32 = MAX_DATA_BYTES + 32;

/// Text of a version's capabilities; QEMU's has 200 bytes.
pub(crate) const MAX_VERSION_BYTES: usize = 4096;

/// Descriptors of one message.
pub(crate) const MAX_FDS: usize = 16;

/// Pieces of memory that are mapped at the same time. A machine has a dozen; a guest that drives an
/// IOMMU has one for each buffer.
pub(crate) const MAX_DMA_MAPS: u32 = 4096;

/// The only size of pages in mappings.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// `VFIO_USER_DMA_READ` and `VFIO_USER_DMA_WRITE` that wait for their replies: enough that the front-end
/// always has the next one.
pub(crate) const MAX_ASKED: usize = 4;

/// Transfers that are not over, of which a device needs few: one that it gives up takes up room until it is answered, or too old.
pub(crate) const MAX_TRANSFERS: usize = 256;

/// Replies that wait for the device: all memory may go away at once. Further such commands are refused.
pub(crate) const MAX_HELD: usize = 2 * MAX_DMA_MAPS as usize;

/// Answers that wait to be read by the front-end; with more it is not read. What we ask, which
/// [`MAX_ASKED`] bounds, is less in any case: else both sides could wait for each other.
pub(crate) const FULL_OUTPUT_BYTES: usize = 2 * MAX_ASKED * MAX_MESSAGE_BYTES as usize;

/// What is read at once, unless a message is longer: of writes to registers, which are what guests do most, as many as
/// [`MESSAGE_BUDGET`] and some more.
pub(crate) const READ_AHEAD_BYTES: usize = 4096;

/// Messages that are carried out before the device gets its turn.
pub(crate) const MESSAGE_BUDGET: usize = 64;

/// How long a front-end may take to answer for its memory. QEMU is silent while it is stopped by a signal, or
/// while its own main loop waits for something; a guest's driver gives up after half a minute, too.
pub(crate) const DMA_TIMEOUT_NS: u64 = 30_000_000_000;
