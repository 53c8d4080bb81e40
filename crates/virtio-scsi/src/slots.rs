//! Slots of commands in flight, as many as the ring has entries.
//!
//! A slot is made when so many commands are in flight for the first time, and then reused with its task and the memory of
//! its lists. Slots are allocated last-in first-out.

use std::ptr;
use std::sync::Arc;

use libc::iovec;
use scsi::{Task, TaskAttribute, Waker};
use telemetry::queue::{AdmitTimeAndKind, RequestKind};
use virtqueue::ChainId;
use virtqueue::MAX_QUEUE_SIZE;

use crate::address::Address;
use crate::messages::{MessagePort, ResumeByMessage};
use crate::wire::{CDB_BYTES, Response};

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// It has no command.
    Free,
    /// The command waits for earlier ones.
    Waits,
    /// Its task runs.
    Runs,
    /// The command is a plain read or write whose block request is in flight. The task is not used.
    Transfers,
}

/// One command. The fields of plain reads and writes come first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Address of the response of a plain read or write.
    pub response_address: *mut u8,
    /// When it was admitted; that of a plain read or write also has the kind that it counts as.
    pub admit_time: AdmitTimeAndKind,
    pub tag: u64,
    /// The data segment of a plain read or write that has only one.
    pub only_segment: iovec,
    pub id: ChainId,
    /// Written bytes in the used entry of a plain read or write.
    pub used_len: u32,
    /// Bytes that a plain read or write transfers.
    pub len: u32,
    /// The disk of a plain read or write.
    pub disk: u32,
    /// The next free slot, plus one; 0: none.
    next: u16,
    pub state: SlotState,
    /// Whether a plain read or write is a write.
    pub is_write: bool,
    /// Whether a plain write is stable when its block request is completed.
    pub fua: bool,
    pub task: Task,
    /// Segments of response and sense data.
    pub response: Vec<iovec>,
    /// Segments of the data.
    pub data: Vec<iovec>,
    pub data_len: u64,
    pub address: Address,
    /// Among the queue's disks and targets.
    pub unit_index: TargetAndDiskIndexes,
    /// Kind of its first block request.
    pub kind: Option<RequestKind>,
    /// Whether the data goes to the guest.
    pub data_is_for_guest: bool,
    /// Room for sense data.
    pub sense_room: usize,
    pub attribute: TaskAttribute,
    pub cdb: [u8; CDB_BYTES],
    /// It was ended early, with this response.
    pub cancelled: Option<Response>,
    /// Bytes of all its block requests.
    pub bytes: u64,
}

/// Target and disk of a command, by their indexes in the queue's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetAndDiskIndexes {
    /// Among the queue's targets.
    pub target: u32,
    /// Among its disks; `None`: the target has no such unit.
    pub disk: Option<u32>,
}

const _: () = assert!(std::mem::offset_of!(Slot, fua) < 64);
const _: () = assert!(MAX_QUEUE_SIZE < u16::MAX);

// SAFETY: the addresses in the lists are plain numbers to this type.
unsafe impl Send for Slot {}

impl Slot {
    /// A free slot, whose task is resumed by this waker.
    fn new(waker: Waker) -> Self {
        Slot {
            response_address: ptr::null_mut(),
            admit_time: AdmitTimeAndKind::default(),
            tag: 0,
            only_segment: iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            },
            id: ChainId {
                id: 0,
                descriptors: 0,
            },
            used_len: 0,
            len: 0,
            disk: 0,
            next: 0,
            state: SlotState::Free,
            is_write: false,
            fua: false,
            task: Task::new(waker),
            response: Vec::new(),
            data: Vec::new(),
            data_len: 0,
            address: Address { target: 0, lun: 0 },
            unit_index: TargetAndDiskIndexes {
                target: 0,
                disk: None,
            },
            kind: None,
            data_is_for_guest: false,
            sense_room: 0,
            attribute: TaskAttribute::Simple,
            cdb: [0; CDB_BYTES],
            cancelled: None,
            bytes: 0,
        }
    }
}

pub(crate) struct Slots {
    /// It has its full capacity from the start and never moves: requests point into tasks.
    slots: Vec<Slot>,
    /// The first free slot, plus one; 0: none.
    free: u16,
    in_flight: u32,
    capacity: u16,
    resume_by_message: Arc<ResumeByMessage>,
}

impl Slots {
    /// Room for `capacity` slots, of which none is made yet. Commands that wait are resumed through `port`, by the number of
    /// their slot.
    pub fn with_capacity(capacity: u16, port: Arc<dyn MessagePort>) -> Self {
        Slots {
            slots: Vec::with_capacity(capacity.into()),
            free: 0,
            in_flight: 0,
            capacity,
            resume_by_message: Arc::new(ResumeByMessage(port)),
        }
    }

    /// How many commands can be in flight.
    pub fn capacity(&self) -> u16 {
        self.capacity
    }

    #[inline]
    pub fn in_flight_count(&self) -> u32 {
        self.in_flight
    }

    /// Allocates a slot, to be filled in; `None`: all are in flight.
    #[inline(always)]
    pub fn allocate(&mut self) -> Option<(u32, &mut Slot)> {
        if self.free == 0 {
            self.try_add_slot()?;
        }
        let index = u32::from(self.free) - 1;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.in_flight += 1;
        Some((index, slot))
    }

    /// Makes one more slot, which is free. `None`: there are as many as the ring has entries.
    #[cold]
    fn try_add_slot(&mut self) -> Option<()> {
        let index = u16::try_from(self.slots.len()).ok()?;
        if index >= self.capacity {
            return None;
        }
        let waker = Waker {
            resume: self.resume_by_message.clone(),
            token: index.into(),
        };
        self.slots.push(Slot::new(waker));
        self.free = index + 1;
        Some(())
    }

    /// Makes a slot free. Its task and lists stay, for the next command.
    #[inline(always)]
    pub fn release(&mut self, index: u32) {
        let next = self.free;
        let slot = self.get_mut(index);
        slot.state = SlotState::Free;
        slot.next = next;
        self.free = free_list_link(index);
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
    pub fn in_flight_slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| (slot.state != SlotState::Free).then_some((index, slot)))
    }
}

/// A slot's index as a link in the free list.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "there are fewer slots than 2^16"
)]
fn free_list_link(index: u32) -> u16 {
    (index + 1) as u16
}
