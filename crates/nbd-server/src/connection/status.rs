//! Block status: a worker thread queries what is allocated and what is dirty, and the reply has a chunk for each context.

use std::sync::{Arc, Mutex, PoisonError};

use block::dirty_bitmap::{BitmapUse, DirtyExtent};
use block::{Allocation, AllocationQuery, DiskCall, DiskIo};
use iothread::Errno;
use nbd::server::{BlockStatusList, Operation};
use nbd::wire::{STATE_DIRTY, allocation_state};

use super::slots::ReplyTail;
use super::{Connection, DISK};
use crate::contexts::MetaContext;

/// Most ranges of one reply, of all its contexts together: a client asks again for the rest.
const MAX_STATUS_RANGES: usize = 4096;

/// The depth of all data: there is one layer.
const ONLY_LAYER: u32 = 1;

impl Connection {
    /// Queries the status of a range: a worker thread does.
    pub(super) fn submit_status_query(&mut self, number: u16, io: &mut dyn DiskIo) {
        let most = match self.slots.get(number).operation {
            Operation::BlockStatus { one: true } => 1,
            _ => (MAX_STATUS_RANGES / self.contexts.len().max(1)).max(1),
        };
        let contexts = self.contexts.iter().map(|numbered| &numbered.context);
        let mut has_allocation = false;
        let mut bitmaps = Vec::new();
        for context in contexts {
            match context {
                MetaContext::Allocation => has_allocation = true,
                MetaContext::AllocationDepth => {}
                MetaContext::DirtyBitmap(bitmap) => bitmaps.push(bitmap.clone()),
            }
        }
        let slot = self.slots.get_mut(number);
        let (offset, len) = (slot.offset, slot.len);
        let results = slot.status.get_or_insert_default();
        let dirty = results.dirty.clone();
        let query_bitmaps = Box::new(move || {
            let found = query_bitmaps(&bitmaps, offset, len, most)?;
            *dirty.lock().unwrap_or_else(PoisonError::into_inner) = found;
            Ok(())
        });
        let call = match has_allocation {
            true => {
                let query = AllocationQuery {
                    offset,
                    len,
                    most,
                    found: results.allocations.clone(),
                };
                DiskCall::AllocationsAnd(query, query_bitmaps)
            }
            false => DiskCall::Other(query_bitmaps),
        };
        self.slots.count_submitted();
        io.submit_blocking_call(DISK, call, number.into());
    }

    /// Replies with the status that was found.
    pub(super) fn reply_with_status(&mut self, number: u16, one: bool) {
        let slot = self.slots.get_mut(number);
        let results = slot.status.get_or_insert_default();
        let allocations = take(&results.allocations);
        let mut dirty = take(&results.dirty).into_iter();
        let mut chunks = Vec::new();
        let last = self.contexts.len().saturating_sub(1);
        for (index, numbered) in self.contexts.iter().enumerate() {
            let mut ranges = BlockStatusList::default();
            // What is not known, of a disk or bitmap that has another size since, is data and dirty.
            let otherwise = match &numbered.context {
                MetaContext::Allocation => {
                    for piece in &allocations {
                        ranges.push(piece.len, allocation_status(piece));
                    }
                    0
                }
                MetaContext::AllocationDepth => ONLY_LAYER,
                MetaContext::DirtyBitmap(_) => {
                    for extent in dirty.next().unwrap_or_default() {
                        ranges.push(extent.len, if extent.dirty { STATE_DIRTY } else { 0 });
                    }
                    STATE_DIRTY
                }
            };
            if ranges.is_empty() {
                ranges.push(slot.len, otherwise);
            }
            ranges.encode_chunk(
                &self.transmission,
                (slot.cookie, slot.offset),
                numbered.number,
                one,
                index == last,
                &mut chunks,
            );
        }
        slot.header = nbd::server::ReplyHeader::default();
        slot.tail = ReplyTail::Status(chunks);
        self.queue_reply(number);
    }
}

/// Takes what a worker thread has put there.
fn take<T: Default>(place: &Mutex<T>) -> T {
    std::mem::take(&mut *place.lock().unwrap_or_else(PoisonError::into_inner))
}

fn allocation_status(piece: &Allocation) -> u32 {
    match piece.allocated {
        true => 0,
        false => allocation_state::HOLE | allocation_state::ZERO,
    }
}

/// The dirty and clean parts of a range in each of these bitmaps.
fn query_bitmaps(
    bitmaps: &[Arc<BitmapUse>],
    offset: u64,
    len: u64,
    most: usize,
) -> Result<Vec<Vec<DirtyExtent>>, Errno> {
    let extents = bitmaps
        .iter()
        .map(|bitmap| bitmap.extents(offset..offset.saturating_add(len), most));
    extents.collect::<Result<_, _>>().map_err(|_| Errno::IO)
}
