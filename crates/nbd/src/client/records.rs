//! The table of a queue's requests, allocated once; the cookie of a request on the wire has the index of its record.

use std::sync::Arc;

use engine::Request;

use super::record::{Record, State};
use super::request_group::RequestGroup;

/// The records of a queue.
pub(super) struct Records {
    /// Never changes its length, so that headers do not move while they are sent.
    slots: Box<[Record]>,
    /// Indices of free ones; last in, first out.
    free: Vec<u32>,
}

impl Records {
    pub fn new(count: u32) -> Self {
        Records {
            slots: (0..count).map(|_| Record::free()).collect(),
            free: (0..count).rev().collect(),
        }
    }

    /// How many are free.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// How many are used.
    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a record for a request of the source with this index.
    pub fn take(
        &mut self,
        request: &Request,
        source_index: u32,
        group: Option<&Arc<RequestGroup>>,
        order: u64,
    ) -> Option<u32> {
        let slot = self.free.pop()?;
        self.get_mut(slot)
            .begin(request, source_index, group, order);
        Some(slot)
    }

    /// Frees a record.
    pub fn release(&mut self, slot: u32) {
        let record = self.get_mut(slot);
        record.state = State::Free;
        record.group = None;
        record.kept_data = Vec::new();
        self.free.push(slot);
    }

    pub fn get(&self, slot: u32) -> &Record {
        &self.slots[slot as usize]
    }

    pub fn get_mut(&mut self, slot: u32) -> &mut Record {
        &mut self.slots[slot as usize]
    }

    /// The request that waits for a reply with this cookie.
    pub fn find_sent(&mut self, cookie: u64) -> Option<u32> {
        let [slot, serial] = [cookie & u64::from(u32::MAX), cookie >> 32];
        let slot = u32::try_from(slot).ok()?;
        let record = self.slots.get(slot as usize)?;
        (record.state == State::Sent && u64::from(record.serial) == serial).then_some(slot)
    }

    /// All that are used, with their indices.
    pub fn iter_used(&self) -> impl Iterator<Item = (u32, &Record)> {
        let numbered = (0..).zip(self.slots.iter());
        numbered.filter(|(_, record)| record.state != State::Free)
    }
}
