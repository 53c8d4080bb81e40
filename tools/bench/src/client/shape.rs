//! Descriptors and bytes that the requests of a queue take, and their places.

use super::layout::Layout;
use crate::error::{Error, Result};

/// Entries of the largest queue that servers take.
const MAX_QUEUE_SIZE: u16 = 1024;
/// Descriptors beside those for data: header and status (virtio specification 1.2, section 5.2.6).
const HEADER_AND_STATUS: u16 = 2;
/// Type and sector of a request.
pub(super) const HEADER_BYTES: usize = 16;
/// How far those of Linux are apart at least.
pub(super) const REQUEST_STRIDE: usize = 256;

/// How headers and answers of requests lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All headers in one piece, and all status bytes, so that a cache line serves several requests.
    Packed,
    /// As Linux's drivers have it: what belongs to a request is in one piece, and far from others.
    Apart,
}

/// What a disk's requests are beside plain reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Reads and writes, whose data begins at a page.
    #[default]
    Plain,
    /// Their data begins at an odd address, so that direct I/O cannot take it as it is.
    Unaligned,
    /// Writes are discards of so many bytes. There are no reads.
    Discards,
}

/// Of a descriptor.
pub(super) const DESC_BYTES: usize = 16;
/// The range of a discard (virtio specification 1.2, section 5.2.6): sector, number of sectors, flags.
const DISCARD_BYTES: u32 = 16;

/// What the requests of a queue have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Requests in flight at most.
    pub depth: u16,
    /// Bytes of each.
    pub block_bytes: u32,
    pub(super) placement: Placement,
    pub(super) form: Form,
    /// Data descriptors of each.
    pub(super) segments: u16,
    /// Each has a table of its own, and takes one entry of the queue.
    pub(super) indirect: bool,
}

impl Shape {
    /// Descriptors in the queue itself while they fit, which is the lighter way; else in tables
    /// of their own. A segment has at most `segment_bytes`.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] when the largest queue is too small and the server has no indirect
    /// descriptors.
    pub fn new(depth: u16, block_bytes: u32, segment_bytes: u32, indirect: bool) -> Result<Self> {
        let unsuitable = |why: String| Err(Error::Unsuitable(why));
        let segments = block_bytes.div_ceil(segment_bytes.max(1));
        let Ok(segments) = u16::try_from(segments) else {
            return unsuitable(format!(
                "{block_bytes} bytes are too many segments for this server: lower --bs"
            ));
        };
        let shape = |indirect| Shape {
            depth,
            block_bytes,
            placement: Placement::Packed,
            form: Form::Plain,
            segments,
            indirect,
        };
        let entries = u32::from(depth) * u32::from(segments + HEADER_AND_STATUS);
        if entries <= u32::from(MAX_QUEUE_SIZE) {
            Ok(shape(false))
        } else if indirect && depth <= MAX_QUEUE_SIZE {
            Ok(shape(true))
        } else {
            unsuitable(format!(
                "{depth} requests of {} descriptors do not fit into a queue of {MAX_QUEUE_SIZE} \
                 entries, and the server has no indirect descriptors: lower --depth or --bs",
                segments + HEADER_AND_STATUS
            ))
        }
    }

    /// The same, placed like this.
    #[must_use]
    pub fn placed(self, placement: Placement) -> Self {
        Shape { placement, ..self }
    }

    /// The same, of this form.
    #[must_use]
    pub fn formed(self, form: Form) -> Self {
        let segments = match form {
            Form::Discards => 1,
            Form::Plain | Form::Unaligned => self.segments,
        };
        Shape {
            form,
            segments,
            ..self
        }
    }

    /// Bytes that go to the device or come from it.
    pub(super) fn data_bytes(&self) -> u32 {
        match self.form {
            Form::Discards => DISCARD_BYTES,
            Form::Plain | Form::Unaligned => self.block_bytes,
        }
    }

    /// Where data begins in its pages.
    pub(super) fn data_offset(&self) -> usize {
        usize::from(self.form == Form::Unaligned)
    }

    /// From one header to the next, and from one status byte.
    pub(super) fn strides(&self) -> (usize, usize) {
        match self.placement {
            Placement::Packed => (HEADER_BYTES, 1),
            Placement::Apart => (REQUEST_STRIDE, REQUEST_STRIDE),
        }
    }

    /// From the first header to the first status byte.
    pub(super) fn status_at(&self) -> usize {
        match self.placement {
            Placement::Packed => HEADER_BYTES * usize::from(self.depth),
            Placement::Apart => HEADER_BYTES,
        }
    }

    /// Entries that the queue needs.
    #[must_use]
    pub fn queue_size(&self) -> u16 {
        let entries = self.depth * if self.indirect { 1 } else { self.chain() };
        // A queue of one entry is something that servers have not tried.
        entries.next_power_of_two().max(2)
    }

    pub(super) fn chain(&self) -> u16 {
        self.segments + HEADER_AND_STATUS
    }

    /// Distance of two requests' heads.
    pub(super) fn stride(&self) -> u16 {
        if self.indirect { 1 } else { self.chain() }
    }

    /// Makes room for them.
    pub fn place(&self, layout: &mut Layout) -> Buffers {
        let depth = usize::from(self.depth);
        let tables = if self.indirect {
            layout.pages(depth * usize::from(self.chain()) * DESC_BYTES)
        } else {
            0
        };
        Buffers {
            headers: layout.pages((self.strides().0 + 1) * depth),
            data: layout.pages(self.data_stride() * depth),
            tables,
        }
    }

    /// From the pages of one request's data to those of the next.
    pub(super) fn data_stride(&self) -> usize {
        Layout::whole_pages(self.data_offset() + self.data_bytes() as usize)
    }
}

/// Where headers, status bytes, data and tables are.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// All headers, and all status bytes after the first or after all of them.
    pub(super) headers: usize,
    pub(super) data: usize,
    pub(super) tables: usize,
}
