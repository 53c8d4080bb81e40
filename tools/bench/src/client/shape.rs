//! Bytes that the requests of a queue take, and their places.

use super::layout::Layout;

/// Descriptors of a request: header, data, status (virtio specification 1.2, section 5.2.6). All are in the queue itself.
pub(super) const CHAIN: u16 = 3;
/// Type and sector of a request.
pub(super) const HEADER_BYTES: usize = 16;
/// How far those of Linux are apart at least.
pub const REQUEST_STRIDE: usize = 256;
/// The range of a discard (virtio specification 1.2, section 5.2.6): sector, number of sectors, flags.
const DISCARD_BYTES: u32 = 16;

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

/// What the requests of a queue have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Requests in flight at most; up to 256, since servers take queues of 1024 entries.
    pub depth: u16,
    /// Bytes of each.
    pub block_bytes: u32,
    /// How they lie in memory.
    pub placement: Placement,
    /// What they are.
    pub form: Form,
}

impl Shape {
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
        (self.depth * CHAIN).next_power_of_two()
    }

    /// Makes room for them.
    pub fn place(&self, layout: &mut Layout) -> Buffers {
        let depth = usize::from(self.depth);
        Buffers {
            headers: layout.pages((self.strides().0 + 1) * depth),
            data: layout.pages(self.data_stride() * depth),
        }
    }

    /// From the pages of one request's data to those of the next.
    pub(super) fn data_stride(&self) -> usize {
        Layout::whole_pages(self.data_offset() + self.data_bytes() as usize)
    }
}

/// Where headers, status bytes and data are.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// All headers, and all status bytes after the first or after all of them.
    pub(super) headers: usize,
    pub(super) data: usize,
}
