//! Buffers for async tasks' own I/O: reserved before the first poll of a task, and freed when the task is complete or returns them.
//!
//! The memory belongs to the task and not to its future: it is freed when the task is complete, after all of its I/O. A task has the
//! memory that it and the nodes below it need before its first poll. If nodes took it one by one, tasks that have some and
//! wait for more would deadlock.

use std::collections::VecDeque;

use crate::disk_file::alignment::AlignedBuffer;
#[cfg(feature = "simulation")]
use engine::{Op, Request};

/// Most bytes of all tasks of an iothread, unless a single task needs more.
pub(super) const MAX_BYTES: usize = 16 << 20;

/// The memory of one async task.
#[derive(Default)]
struct ReservedTaskMemory {
    bytes: usize,
    taken: Vec<TaskBufferMemory>,
}

/// The memory of one buffer of a task.
struct TaskBufferMemory {
    _memory: AlignedBuffer,
    /// The list of segments of requests with the buffer; its address must not change.
    segment: Box<libc::iovec>,
}

/// The buffers of an iothread's async tasks.
#[derive(Default)]
pub(super) struct TaskBuffers {
    reserved_bytes: usize,
    /// Indexed by task.
    reservations: Vec<ReservedTaskMemory>,
    /// Tasks that wait for memory, in order, with the bytes that they need.
    waiting: VecDeque<(u32, usize)>,
}

impl TaskBuffers {
    /// Reserves memory for a task. False: the task has to wait until
    /// [`reserve_for_next_waiting`](Self::reserve_for_next_waiting) returns it.
    pub fn reserve_or_queue(&mut self, task: u32, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        self.waiting.push_back((task, bytes));
        self.waiting.len() == 1 && self.reserve_for_next_waiting().is_some()
    }

    /// Reserves memory for the next waiting task, if there is enough, and returns the task.
    pub fn reserve_for_next_waiting(&mut self) -> Option<u32> {
        let (task, bytes) = *self.waiting.front()?;
        if self.reserved_bytes > 0 && self.reserved_bytes.saturating_add(bytes) > MAX_BYTES {
            return None;
        }
        self.waiting.pop_front();
        let index = task as usize;
        if self.reservations.len() <= index {
            self.reservations
                .resize_with(index + 1, ReservedTaskMemory::default);
        }
        self.reserved_bytes += bytes;
        self.reservations[index].bytes += bytes;
        Some(task)
    }

    /// A zeroed buffer out of the memory that a task has reserved.
    pub fn allocate_reserved(&mut self, task: u32, len: usize) -> TaskBuffer {
        let mut memory = AlignedBuffer::new(len);
        let mut segment = Box::new(libc::iovec {
            iov_base: memory.bytes().as_mut_ptr().cast(),
            iov_len: len,
        });
        let buffer = TaskBuffer {
            segment: &raw mut *segment,
            len: len as u64,
        };
        let reservation = self.reservations.get_mut(task as usize);
        let reservation = reservation.expect("it has reserved memory");
        let taken = reservation.taken.iter().map(|taken| taken.segment.iov_len);
        debug_assert!(taken.sum::<usize>() + len <= reservation.bytes);
        reservation.taken.push(TaskBufferMemory {
            _memory: memory,
            segment,
        });
        buffer
    }

    /// Frees a buffer of a task, which stays reserved for other ones of the task.
    pub fn free(&mut self, task: u32, buffer: &TaskBuffer) {
        if let Some(reservation) = self.reservations.get_mut(task as usize) {
            let is_other =
                |taken: &TaskBufferMemory| !std::ptr::eq(&raw const *taken.segment, buffer.segment);
            reservation.taken.retain(is_other);
        }
    }

    /// Frees the memory of a task that is complete.
    pub fn release(&mut self, task: u32) {
        if let Some(reservation) = self.reservations.get_mut(task as usize) {
            self.reserved_bytes -= std::mem::take(&mut reservation.bytes);
            reservation.taken.clear();
        }
    }
}

/// A buffer of the running async task, valid until the task is complete or [returns](super::TaskContext::return_buffer) it. Its
/// alignment suits any direct I/O.
pub(crate) struct TaskBuffer {
    segment: *mut libc::iovec,
    len: u64,
}

impl TaskBuffer {
    /// The segment of its first bytes.
    pub fn segment_of_first(&self, len: u64) -> libc::iovec {
        debug_assert!(len <= self.len);
        // SAFETY: the segment is in place until the task is complete, and a backend has a copy of it.
        let whole = unsafe { *self.segment };
        libc::iovec {
            iov_len: usize::try_from(len)
                .unwrap_or(usize::MAX)
                .min(whole.iov_len),
            ..whole
        }
    }

    /// A read into all of it, or a write of it.
    #[cfg(feature = "simulation")]
    pub fn to_request(&self, op: Op, offset: u64) -> Request {
        Request {
            op,
            fua: false,
            offset,
            len: self.len,
            iov: self.segment,
            iov_count: 1,
            token: 0,
        }
    }
}
