//! The buffer in which queues record what they take: `GET_INFLIGHT_FD` and `SET_INFLIGHT_FD`.
//!
//! We make it, the front-end keeps it while we are away, and gives it to whoever comes next. What is in it
//! is the business of the queues; here it is a file with a region for each of them. A front-end may
//! pass any other file instead: it is looked at like the guest's memory.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use passed_fds::{MapError, Mapping};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserInflight;
use virtqueue::InflightRegion;

/// Regions are made of words.
const ALIGN_BYTES: u64 = 8;

/// What is wrong with a buffer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InflightBufferError {
    /// More than there are.
    #[error("it is for {asked} queues: expected 1 to {queues} (num-queues)")]
    Queues { asked: u16, queues: u16 },
    /// More than a queue may have.
    #[error("it is for queues of {asked} entries: expected 1 to {max} (queue-size)")]
    QueueSize { asked: u16, max: u16 },
    /// Less than the queues need.
    #[error(
        "it has {has} bytes: expected at least {needs} for {queues} queues of {entries} entries"
    )]
    TooSmall {
        has: u64,
        needs: u64,
        queues: u16,
        entries: u16,
    },
    /// Not where words can be.
    #[error("it begins at byte {offset} of its file: expected a multiple of {ALIGN_BYTES}")]
    Misaligned { offset: u64 },
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A queue without a region.
    #[error("it is for queues 0 to {last}: SET_INFLIGHT_FD has to name as many as are started")]
    NoRegion { last: u16 },
}

/// For what queues a buffer is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InflightShape {
    packed: bool,
    queues: u16,
    entries: u16,
}

impl InflightShape {
    /// What a front-end says, of a device with `queues` queues of at most `max_entries` entries.
    pub fn checked(
        said: &VhostUserInflight,
        packed: bool,
        queues: u16,
        max_entries: u16,
    ) -> Result<Self, InflightBufferError> {
        let (num_queues, entries) = (said.num_queues, said.queue_size);
        if !(1..=queues).contains(&num_queues) {
            return Err(InflightBufferError::Queues {
                asked: num_queues,
                queues,
            });
        }
        if !(1..=max_entries).contains(&entries) {
            return Err(InflightBufferError::QueueSize {
                asked: entries,
                max: max_entries,
            });
        }
        Ok(InflightShape {
            packed,
            queues: num_queues,
            entries,
        })
    }

    /// Bytes from one queue's region to the next.
    fn stride(self) -> u64 {
        InflightRegion::len_bytes(self.packed, self.entries) as u64
    }

    fn len_bytes(self) -> u64 {
        self.stride() * u64::from(self.queues)
    }

    /// A new buffer, in which nothing is recorded. Nobody can make it smaller.
    pub fn make(self) -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("blockplane inflight", flags)?;
        ftruncate(&file, self.len_bytes())?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file.into())
    }

    /// What the front-end is told of it, and says again when it gives it back.
    pub fn described(self) -> VhostUserInflight {
        VhostUserInflight::new(self.len_bytes(), 0, self.queues, self.entries)
    }
}

/// A buffer that the front-end has given us.
pub(crate) struct InflightBuffer {
    shape: InflightShape,
    len_bytes: u64,
    mapping: Arc<Mapping>,
}

impl InflightBuffer {
    /// Maps what a front-end says and passes.
    pub fn map(
        shape: InflightShape,
        said: &VhostUserInflight,
        file: File,
    ) -> Result<Self, InflightBufferError> {
        let (has, offset) = (said.mmap_size, said.mmap_offset);
        let needs = shape.len_bytes();
        if has < needs {
            let InflightShape {
                queues, entries, ..
            } = shape;
            return Err(InflightBufferError::TooSmall {
                has,
                needs,
                queues,
                entries,
            });
        }
        if !offset.is_multiple_of(ALIGN_BYTES) {
            return Err(InflightBufferError::Misaligned { offset });
        }
        Ok(InflightBuffer {
            shape,
            len_bytes: needs,
            mapping: Arc::new(Mapping::new(file, offset, needs)?),
        })
    }

    /// What the front-end said of it, and its file.
    pub fn described(&self) -> Option<(VhostUserInflight, BorrowedFd<'_>)> {
        let (file, offset) = self.mapping.source()?;
        let InflightShape {
            queues, entries, ..
        } = self.shape;
        let said = VhostUserInflight::new(self.len_bytes, offset, queues, entries);
        Some((said, file))
    }

    /// The region of a queue, which has the form that the driver has chosen by now.
    pub fn region(&self, queue: u16, packed: bool) -> Result<InflightRegion, InflightBufferError> {
        let shape = InflightShape {
            packed,
            ..self.shape
        };
        if queue >= shape.queues {
            return Err(InflightBufferError::NoRegion {
                last: shape.queues - 1,
            });
        }
        if shape.len_bytes() > self.len_bytes {
            return Err(InflightBufferError::TooSmall {
                has: self.len_bytes,
                needs: shape.len_bytes(),
                queues: shape.queues,
                entries: shape.entries,
            });
        }
        let start = shape.stride() * u64::from(queue);
        // Inside of what is mapped, and so fits.
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let host = NonNull::new(self.mapping.host().wrapping_add(start));
        let host = host.expect("a mapping is somewhere");
        // SAFETY: the region lies in `len_bytes` mapped bytes, which the mapping keeps, aligned as its offset in the
        // file is; nobody borrows them.
        Ok(unsafe { InflightRegion::new(host, packed, shape.entries, self.mapping.clone()) })
    }
}
