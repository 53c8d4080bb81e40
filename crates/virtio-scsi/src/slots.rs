//! Commands in flight: as many as the ring has entries.
//!
//! A slot is made when so many commands are in flight for the first time, and used again and again: it keeps its
//! task and the memory of its lists. Slots are handed out last-in first-out.

use std::sync::Arc;

use libc::iovec;
use scsi::{Attribute, Task, Waker};
use virtio_blk::{Kind, Stamp};
use virtqueue::ChainId;

use crate::address::Address;
use crate::port::{Port, Resumes};
use crate::wire::{CDB_BYTES, Response};

/// What a command is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// There is none.
    Free,
    /// It waits for others before it.
    Waits,
    /// It is carried out.
    Runs,
}

/// One command.
pub(crate) struct Slot {
    pub task: Task,
    pub state: State,
    /// Where response and sense data go.
    pub response: Vec<iovec>,
    /// Where the data is, or goes.
    pub data: Vec<iovec>,
    pub data_len: u64,
    /// The data goes to the guest.
    pub reads: bool,
    /// Room for sense data.
    pub sense_bytes: usize,
    pub id: ChainId,
    /// That of the memory map that the addresses are of.
    pub generation: Stamp,
    pub address: Address,
    pub tag: u64,
    /// Among the queue's disks and targets.
    pub place: Place,
    pub attribute: Attribute,
    pub cdb: [u8; CDB_BYTES],
    /// Somebody ended it, and this is what the guest hears.
    pub cancelled: Option<Response>,
    /// When it was taken, in ticks.
    pub taken: u64,
    /// What it asked of the disk first.
    pub kind: Option<Kind>,
    /// Of all that it asked.
    pub bytes: u64,
}

/// Where a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Among the queue's targets.
    pub target: usize,
    /// Among its disks; `None`: the target has no such unit.
    pub disk: Option<usize>,
}

// SAFETY: the addresses in the lists are plain numbers to this type.
unsafe impl Send for Slot {}

impl Slot {
    fn new(waker: Waker) -> Self {
        Slot {
            task: Task::new(waker),
            state: State::Free,
            response: Vec::new(),
            data: Vec::new(),
            data_len: 0,
            reads: false,
            sense_bytes: 0,
            id: ChainId {
                id: 0,
                descriptors: 0,
            },
            generation: Stamp::default(),
            address: Address { target: 0, lun: 0 },
            tag: 0,
            place: Place {
                target: 0,
                disk: None,
            },
            attribute: Attribute::Simple,
            cdb: [0; CDB_BYTES],
            cancelled: None,
            taken: 0,
            kind: None,
            bytes: 0,
        }
    }
}

pub(crate) struct Slots {
    /// It has room for all of them from the start and never moves: requests point into tasks.
    slots: Vec<Slot>,
    free: Vec<u32>,
    size: u16,
    resumes: Arc<Resumes>,
}

impl Slots {
    /// `size` slots. Commands that wait are resumed through `port`, by the number of their slot.
    pub fn new(size: u16, port: Arc<dyn Port>) -> Self {
        Slots {
            slots: Vec::with_capacity(size.into()),
            free: Vec::with_capacity(size.into()),
            size,
            resumes: Arc::new(Resumes(port)),
        }
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    pub fn in_flight(&self) -> u32 {
        // There are fewer than 2^16.
        u32::try_from(self.slots.len() - self.free.len()).unwrap_or(u32::MAX)
    }

    /// A slot, to be filled in; `None`: all are in flight.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        match self.free.pop() {
            Some(index) => Some(index),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        let index = u32::try_from(self.slots.len()).ok()?;
        if index >= u32::from(self.size) {
            return None;
        }
        let waker = Waker {
            resume: self.resumes.clone(),
            token: index.into(),
        };
        self.slots.push(Slot::new(waker));
        Some(index)
    }

    #[inline]
    pub fn give_back(&mut self, index: u32) {
        self.get_mut(index).state = State::Free;
        self.free.push(index);
    }

    #[inline]
    pub fn get(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// The slots of commands in flight.
    pub fn used(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| (slot.state != State::Free).then_some((index, slot)))
    }
}
