//! Limits of a connection, all of them constants: sizes of messages, numbers of mappings, transfers and waiting replies, timeouts.

/// Most data of one message, announced in the version's capabilities: the protocol's default.
pub(crate) const MAX_DATA_BYTES: u32 = 1 << 20;

/// Most bytes of a message: the most data and the longest fields before them.
pub(crate) const MAX_MESSAGE_BYTES: u32 = MAX_DATA_BYTES + 32;

/// Longest text of a version's capabilities; QEMU's has 200 bytes.
pub(crate) const MAX_VERSION_BYTES: usize = 4096;

/// Most descriptors of one message.
pub(crate) const MAX_FDS: usize = 16;

/// Most memory regions that are mapped at the same time. A machine has a dozen; a guest that uses an
/// IOMMU has one for each buffer.
pub(crate) const MAX_DMA_MAPS: u32 = 4096;

/// The only supported page size of mappings.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Most `VFIO_USER_DMA_READ` and `VFIO_USER_DMA_WRITE` that wait for their replies: enough that the front-end
/// always has the next one.
pub(crate) const MAX_PENDING_MESSAGES: usize = 4;

/// Most unfinished transfers. A device needs few, but a transfer that it abandons stays until the reply or the timeout.
pub(crate) const MAX_TRANSFERS: usize = 256;

/// Most replies that wait for the device: all memory may be unmapped at once. Further such commands are refused.
pub(crate) const MAX_DELAYED_REPLIES: usize = 2 * MAX_DMA_MAPS as usize;

/// Unsent bytes above which no more messages are read from the front-end. It exceeds the size of our own commands, which
/// [`MAX_PENDING_MESSAGES`] bounds: otherwise both sides could wait for each other.
pub(crate) const FULL_OUTPUT_BYTES: usize = 2 * MAX_PENDING_MESSAGES * MAX_MESSAGE_BYTES as usize;

/// Size of a read, unless a message is longer: somewhat more than [`MESSAGE_BUDGET`] register writes, which are the most
/// frequent messages.
pub(crate) const READ_AHEAD_BYTES: usize = 4096;

/// Messages that are handled before the device gets its turn.
pub(crate) const MESSAGE_BUDGET: usize = 64;

/// Timeout of an access to the front-end's memory. QEMU does not reply while it is stopped by a signal or its
/// main loop blocks; a guest's driver gives up after half a minute, too.
pub(crate) const DMA_TIMEOUT_NS: u64 = 30_000_000_000;
