//! Started queues and socket devices of an iothread by their index among its sources, and the allocation of these indices.
//!
//! A *source* of block requests is a queue or a socket device. Its index is the upper half of every token of its requests; it is
//! free again only when the last of them has completed.

use crate::socket_devices::SocketDevices;
use crate::vring::Vring;

/// The queues and socket devices of an iothread, and the free indices.
#[derive(Default)]
pub(crate) struct SourceTable {
    /// The socket devices, which share the indices.
    pub socket_devices: SocketDevices,
    /// `None`: a free index, or a socket device.
    queues: Vec<Option<Box<Vring>>>,
    free_indices: Vec<u32>,
}

impl SourceTable {
    /// Reserves an index for a source that is to be started.
    pub fn reserve_index(&mut self) -> u32 {
        self.free_indices.pop().unwrap_or_else(|| {
            self.queues.push(None);
            u32::try_from(self.queues.len() - 1).expect("fewer than 2^32 queues")
        })
    }

    /// Number of indices that were allocated, of sources and free ones.
    pub fn allocated_index_count(&self) -> usize {
        self.queues.len()
    }

    /// Adds a queue with its reserved index.
    pub fn insert_vring(&mut self, source_index: u32, vring: Vring) {
        self.queues[source_index as usize] = Some(Box::new(vring));
    }

    /// Frees an index; returns the queue that had it.
    pub fn free_index_and_take_vring(&mut self, source_index: u32) -> Option<Box<Vring>> {
        self.free_indices.push(source_index);
        self.queues[source_index as usize].take()
    }

    #[inline]
    pub fn get(&self, source_index: u32) -> Option<&Vring> {
        self.queues.get(source_index as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, source_index: u32) -> Option<&mut Vring> {
        self.queues.get_mut(source_index as usize)?.as_deref_mut()
    }
}
