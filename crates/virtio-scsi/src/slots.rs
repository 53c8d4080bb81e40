//! Commands in flight: as many as the ring has entries.
//!
//! A slot is made when so many commands are in flight for the first time, and used again and again: it keeps its
//! task and the memory of its lists. Slots are handed out last-in first-out.

use std::ptr;
use std::sync::Arc;

use libc::iovec;
use scsi::{Attribute, Task, Waker};
use telemetry::queue::{AdmitTime, Kind};
use virtqueue::ChainId;
use virtqueue::MAX_QUEUE_SIZE;

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
    /// It is a plain read or write whose request is under way. Its task does not know of it.
    Transfers,
}

/// One command. What plain reads and writes need of it comes first, and is a cache line.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Where the response of a plain read or write goes.
    pub response_at: *mut u8,
    /// When it was taken; that of a plain read or write says also what it counts as.
    pub stamp: AdmitTime,
    pub tag: u64,
    /// Where the data of a plain read or write is, if that is one segment.
    pub segment: iovec,
    pub id: ChainId,
    /// What the used entry of a plain read or write says was written.
    pub written: u32,
    /// Bytes that a plain read or write moves.
    pub len: u32,
    /// The disk of a plain read or write.
    pub disk: u32,
    /// The next free slot, plus one; 0: none.
    next: u16,
    pub state: State,
    /// A plain read or write is a write.
    pub writes: bool,
    pub task: Task,
    /// Where response and sense data go.
    pub response: Vec<iovec>,
    /// Where the data is, or goes.
    pub data: Vec<iovec>,
    pub data_len: u64,
    pub address: Address,
    /// Among the queue's disks and targets.
    pub place: Place,
    /// What it asked of the disk first.
    pub kind: Option<Kind>,
    /// The data goes to the guest.
    pub reads: bool,
    /// Room for sense data.
    pub sense_bytes: usize,
    pub attribute: Attribute,
    pub cdb: [u8; CDB_BYTES],
    /// Somebody ended it, and this is what the guest hears.
    pub cancelled: Option<Response>,
    /// Of all that it asked.
    pub bytes: u64,
}

/// Where a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Among the queue's targets.
    pub target: u32,
    /// Among its disks; `None`: the target has no such unit.
    pub disk: Option<u32>,
}

const _: () = assert!(std::mem::offset_of!(Slot, writes) < 64);
const _: () = assert!(MAX_QUEUE_SIZE < u16::MAX);

// SAFETY: the addresses in the lists are plain numbers to this type.
unsafe impl Send for Slot {}

impl Slot {
    fn new(waker: Waker) -> Self {
        Slot {
            response_at: ptr::null_mut(),
            stamp: AdmitTime::default(),
            tag: 0,
            segment: iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            },
            id: ChainId {
                id: 0,
                descriptors: 0,
            },
            written: 0,
            len: 0,
            disk: 0,
            next: 0,
            state: State::Free,
            writes: false,
            task: Task::new(waker),
            response: Vec::new(),
            data: Vec::new(),
            data_len: 0,
            address: Address { target: 0, lun: 0 },
            place: Place {
                target: 0,
                disk: None,
            },
            kind: None,
            reads: false,
            sense_bytes: 0,
            attribute: Attribute::Simple,
            cdb: [0; CDB_BYTES],
            cancelled: None,
            bytes: 0,
        }
    }
}

pub(crate) struct Slots {
    /// It has room for all of them from the start and never moves: requests point into tasks.
    slots: Vec<Slot>,
    /// The first free slot, plus one; 0: none.
    free: u16,
    in_flight: u32,
    size: u16,
    resumes: Arc<Resumes>,
}

impl Slots {
    /// `size` slots. Commands that wait are resumed through `port`, by the number of their slot.
    pub fn new(size: u16, port: Arc<dyn Port>) -> Self {
        Slots {
            slots: Vec::with_capacity(size.into()),
            free: 0,
            in_flight: 0,
            size,
            resumes: Arc::new(Resumes(port)),
        }
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A slot, to be filled in; `None`: all are in flight.
    #[inline(always)]
    pub fn take(&mut self) -> Option<(u32, &mut Slot)> {
        if self.free == 0 {
            self.grow()?;
        }
        let index = u32::from(self.free) - 1;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.in_flight += 1;
        Some((index, slot))
    }

    /// Makes one more, which is free.
    #[cold]
    fn grow(&mut self) -> Option<()> {
        let index = u16::try_from(self.slots.len()).ok()?;
        if index >= self.size {
            return None;
        }
        let waker = Waker {
            resume: self.resumes.clone(),
            token: index.into(),
        };
        self.slots.push(Slot::new(waker));
        self.free = index + 1;
        Some(())
    }

    #[inline(always)]
    pub fn give_back(&mut self, index: u32) {
        let next = self.free;
        let slot = self.get_mut(index);
        slot.state = State::Free;
        slot.next = next;
        self.free = after(index);
        self.in_flight -= 1;
    }

    #[inline(always)]
    pub fn get(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    #[inline(always)]
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

/// A slot as a link.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "there are fewer slots than 2^16"
)]
fn after(index: u32) -> u16 {
    (index + 1) as u16
}
