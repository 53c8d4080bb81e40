//! One queue of the device: chains in, block requests out; completions in, used entries out.

use std::sync::Arc;

use block::{Op, Request};
use virtqueue::{Chain, GuestMemory, RingError, SplitQueue};

use crate::device::{Device, SERIAL_BYTES};
use crate::merge::MergeBuffer;
use crate::parse::{Parse, Parsed, RequestError, copy_to, data_of};
use crate::slots::{NONE, Slots};
use crate::wire::Status;

/// Segments that a request may have beyond those that we announce: a buffer across the border of two
/// memory regions is one descriptor of the guest's and two segments of ours. Few requests meet one
/// border, hardly any meets more.
const BORDER_SEGMENTS: u32 = 8;

/// Where block requests go.
pub trait Sink {
    /// How many requests are taken for sure.
    fn room(&self) -> usize;

    /// Takes a request; there was room.
    ///
    /// # Safety
    /// The request's segments are valid, and stay so until [`Queue::complete`] was called with
    /// the slot in its token.
    unsafe fn submit(&mut self, request: Request);
}

/// How an admission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The ring is empty.
    Drained,
    /// The budget is used up and there may be more.
    Budget,
    /// The sink is full: come again after a completion.
    Stalled,
}

/// The guest broke the queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The ring itself.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// What stood in it.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// What a completion finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Requests of the guest.
    pub requests: u32,
    /// The generation of the memory map that they were admitted with.
    pub epoch: u32,
}

/// The requests of one virtqueue.
pub struct Queue {
    device: Arc<Device>,
    slots: Slots,
    merge: MergeBuffer,
    /// Upper half of every token: the lower is the slot.
    token_base: u64,
    /// Used entries were pushed by admitting.
    answered: bool,
}

impl Queue {
    /// For a ring of `size` entries. `token` names the queue among all of its iothread: block
    /// requests carry it in the upper half of their token.
    #[must_use]
    pub fn new(device: Arc<Device>, size: u16, token: u32) -> Self {
        let slots = Slots::new(size, device.max_segments() + BORDER_SEGMENTS);
        Queue {
            device,
            slots,
            merge: MergeBuffer::new(),
            token_base: u64::from(token) << 32,
            answered: false,
        }
    }

    /// Requests of the guest that are not finished.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    /// Whether admitting has answered requests by itself since this was last asked: then the ring
    /// has entries to publish.
    #[inline]
    pub fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.answered)
    }

    /// Takes up to `budget` chains off the ring. What can be answered at once is pushed to the
    /// ring, the rest goes to the sink. `epoch` is the generation of `memory`.
    ///
    /// # Errors
    /// When the guest broke the queue. Requests before the breaking one were submitted.
    pub fn admit(
        &mut self,
        ring: &mut SplitQueue,
        memory: &GuestMemory,
        epoch: u32,
        chain: &mut Chain,
        sink: &mut impl Sink,
        budget: usize,
    ) -> Result<Admission, AdmitError> {
        let admission = self.drain(ring, memory, epoch, chain, sink, budget);
        self.submit_merged(sink);
        admission
    }

    fn drain(
        &mut self,
        ring: &mut SplitQueue,
        memory: &GuestMemory,
        epoch: u32,
        chain: &mut Chain,
        sink: &mut impl Sink,
        budget: usize,
    ) -> Result<Admission, AdmitError> {
        for _ in 0..budget {
            if sink.room() <= self.merge.len() {
                return Ok(Admission::Stalled);
            }
            let Some(head) = ring.pop(memory, chain)? else {
                return Ok(Admission::Drained);
            };
            let parse = self.device.parse(chain)?;
            self.start(ring, epoch, head, chain, &parse, sink)?;
        }
        Ok(Admission::Budget)
    }

    fn start(
        &mut self,
        ring: &mut SplitQueue,
        epoch: u32,
        head: u16,
        chain: &Chain,
        parse: &Parse,
        sink: &mut impl Sink,
    ) -> Result<(), RequestError> {
        match parse.what {
            Parsed::Done(status) => self.answer(ring, head, parse, status),
            Parsed::GetId => {
                self.get_id(chain);
                self.answer(ring, head, parse, Status::Ok);
            }
            Parsed::Transfer { op, offset, len } => {
                let slot = self.take_slot(epoch, head, parse, offset, len)?;
                for segment in data_of(chain, op) {
                    if !self.slots.push_segment(slot, segment) {
                        // More segments than we announce, and than borders explain.
                        self.slots.give_back(slot);
                        self.answer(ring, head, parse, Status::IoErr);
                        return Ok(());
                    }
                }
                self.transfer(op, slot, sink);
            }
            Parsed::NoData { op, offset, len } => {
                let slot = self.take_slot(epoch, head, parse, offset, len)?;
                if self.merge.holds_writes() {
                    self.submit_merged(sink);
                }
                self.submit(op, slot, sink);
            }
        }
        Ok(())
    }

    /// Finishes a request that needs no disk.
    fn answer(&mut self, ring: &mut SplitQueue, head: u16, parse: &Parse, status: Status) {
        write_status(parse.status, status);
        ring.push(head, parse.writable);
        self.answered = true;
    }

    fn take_slot(
        &mut self,
        epoch: u32,
        head: u16,
        parse: &Parse,
        offset: u64,
        len: u64,
    ) -> Result<u32, RequestError> {
        let count = self.slots.count();
        let slot = self.slots.take().ok_or(RequestError::TooMany(count))?;
        let taken = self.slots.get_mut(slot);
        taken.head = head;
        taken.status = parse.status;
        taken.written = parse.writable;
        taken.epoch = epoch;
        taken.offset = offset;
        taken.len = len;
        Ok(slot)
    }

    fn transfer(&mut self, op: Op, slot: u32, sink: &mut impl Sink) {
        if !self.device.options().request_merging {
            return self.submit(op, slot, sink);
        }
        if !self.merge.takes(op) {
            self.submit_merged(sink);
        }
        let offset = self.slots.get(slot).offset;
        self.merge.push(op, offset, slot);
    }

    fn submit_merged(&mut self, sink: &mut impl Sink) {
        let (token_base, fua) = (self.token_base, !self.device.write_cache());
        self.merge.drain(&mut self.slots, |slots, op, slot| {
            hand_over(slots, op, slot, fua, token_base, sink);
        });
    }

    fn submit(&mut self, op: Op, slot: u32, sink: &mut impl Sink) {
        let fua = !self.device.write_cache();
        hand_over(&mut self.slots, op, slot, fua, self.token_base, sink);
    }

    fn get_id(&self, chain: &Chain) {
        let serial = self.device.options().serial.as_bytes();
        // A shorter one ends with a zero byte.
        let mut id = [0; SERIAL_BYTES];
        id[..serial.len()].copy_from_slice(serial);
        copy_to(chain.writable(), &id[..SERIAL_BYTES.min(serial.len() + 1)]);
    }

    /// A block request is done: fills in the used entries of all that was merged into it.
    pub fn complete(
        &mut self,
        ring: &mut SplitQueue,
        slot: u32,
        result: Result<(), engine::Errno>,
    ) -> Finished {
        let status = if result.is_ok() {
            Status::Ok
        } else {
            Status::IoErr
        };
        let mut finished = Finished {
            requests: 0,
            epoch: self.slots.get(slot).epoch,
        };
        let mut next = slot;
        while next != NONE {
            let slot = next;
            next = self.slots.link(slot);
            let done = self.slots.get(slot);
            write_status(done.status, status);
            ring.push(done.head, done.written);
            self.slots.give_back(slot);
            finished.requests += 1;
        }
        finished
    }
}

fn hand_over(
    slots: &mut Slots,
    op: Op,
    slot: u32,
    write_through: bool,
    token_base: u64,
    sink: &mut impl Sink,
) {
    let fua = write_through && matches!(op, Op::Write | Op::WriteZeroes { .. });
    let (offset, len) = (slots.get(slot).offset, slots.get(slot).len);
    let iov = slots.segments(slot);
    // A request has at most a ring's worth of segments.
    let iov_count = u32::try_from(iov.len()).unwrap_or(u32::MAX);
    let iov = iov.as_mut_ptr();
    let token = token_base | u64::from(slot);
    // SAFETY: the segments are checked guest memory, held by the slot's epoch; the list lies in the
    // slot, which is not given back before `complete`.
    unsafe {
        sink.submit(Request {
            op,
            fua,
            offset,
            len,
            iov,
            iov_count,
            token,
        })
    };
}

fn write_status(status: *mut u8, value: Status) {
    // SAFETY: `parse` found the byte in checked guest memory, and the map is held until the request
    // is finished. The guest may look at any time: one volatile byte.
    unsafe { status.write_volatile(value as u8) };
}
