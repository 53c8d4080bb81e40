//! The completion ring of a Linux AIO context, which the kernel shares with user space: reads completions without a system call.
//!
//! The protocol is that of `fs/aio.c`: the kernel writes an event, then advances `tail`; we read
//! events up to `tail`, then advance `head`. One thread reads, and it never mixes this with
//! io_getevents(2). A ring that does not look exactly as expected is refused: the layout is not a
//! documented interface, so the magic number is the contract.

use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::abi::{AIO_RING_MAGIC, IoEvent, RingHeader};

/// How many of the last events are searched for one request, since other disks may have completed after it.
const LAST_FEW: usize = 8;

/// A view of one context's ring. Valid as long as the context.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompletionRing {
    header: NonNull<RingHeader>,
    /// Read once: the kernel never resizes a ring.
    nr: u32,
}

/// The events in the ring at one moment; both indices are below the ring's size.
#[derive(Debug)]
pub(super) struct RingEvents {
    ring: CompletionRing,
    next: u32,
    tail: u32,
}

impl CompletionRing {
    /// Checks the header; `None` means that user space must not read this ring.
    ///
    /// # Safety
    /// `header` is what [`AioKernel::ring`](super::AioKernel::ring) promises, and stays so for as
    /// long as the view or a copy of it is used.
    pub(super) unsafe fn validated(header: NonNull<RingHeader>, max_events: u32) -> Option<Self> {
        let raw = header.as_ptr();
        // SAFETY: the caller's promise; these fields do not change after io_setup.
        let (magic, incompat, length, nr) = unsafe {
            (
                (&raw const (*raw).magic).read(),
                (&raw const (*raw).incompat_features).read(),
                (&raw const (*raw).header_length).read(),
                (&raw const (*raw).nr).read(),
            )
        };
        // One event always stays empty, or a full ring would look like an empty one.
        let sane = magic == AIO_RING_MAGIC
            && incompat == 0
            && usize::try_from(length) == Ok(size_of::<RingHeader>())
            && nr > max_events;
        sane.then_some(Self { header, nr })
    }

    /// Whether there is an event: two loads, no system call.
    pub(super) fn has_events(self) -> bool {
        self.head().load(Ordering::Relaxed) != self.tail().load(Ordering::Relaxed)
    }

    /// Whether the request with this `data` is among the last few events.
    pub(super) fn is_request_among_last_events(self, data: u64) -> bool {
        let RingEvents { next, tail, .. } = self.current_events();
        let mut index = tail;
        for _ in 0..LAST_FEW {
            if index == next {
                return false;
            }
            index = index.checked_sub(1).unwrap_or(self.nr - 1);
            // SAFETY: between head and tail, which `events` has checked.
            if unsafe { self.read_event(index) }.data == data {
                return true;
            }
        }
        false
    }

    /// Reads the event at `index`.
    ///
    /// # Safety
    /// `index` is between head and tail, and so below `nr`.
    unsafe fn read_event(self, index: u32) -> IoEvent {
        // SAFETY: the events follow the header (`new` checked its length), and the kernel does not
        // write between head and tail.
        unsafe {
            let events = self.header.as_ptr().add(1).cast::<IoEvent>();
            events.add(index as usize).read()
        }
    }

    /// The current events. Later ones wait for the next call, so that a fast disk cannot keep the caller in one pass.
    pub(super) fn current_events(self) -> RingEvents {
        let next = self.head().load(Ordering::Relaxed);
        // Acquire: the events before `tail` are visible. Pairs with the kernel's barrier.
        let tail = self.tail().load(Ordering::Acquire);
        let sane = next < self.nr && tail < self.nr;
        debug_assert!(sane, "ring indices {next}, {tail} of {}", self.nr);
        // A broken ring is an empty one: nothing is read out of bounds.
        let tail = if sane { tail } else { next };
        RingEvents {
            ring: self,
            next,
            tail,
        }
    }

    /// Frees the events before the position of `events` for the kernel.
    pub(super) fn free_events_before(self, events: RingEvents) {
        // Release: our reads of the events are done before the kernel may overwrite them.
        self.head().store(events.next, Ordering::Release);
    }

    fn head(&self) -> &AtomicU32 {
        // SAFETY: mapped while the view is used, and only accessed atomically after setup.
        unsafe { &(*self.header.as_ptr()).head }
    }

    fn tail(&self) -> &AtomicU32 {
        // SAFETY: as for `head`.
        unsafe { &(*self.header.as_ptr()).tail }
    }
}

impl Iterator for RingEvents {
    type Item = IoEvent;

    fn next(&mut self) -> Option<IoEvent> {
        if self.next == self.tail {
            return None;
        }
        // SAFETY: below `nr` (checked in `events`, kept by the wrap below), and not yet at the tail.
        let event = unsafe { self.ring.read_event(self.next) };
        self.next = if self.next + 1 == self.ring.nr {
            0
        } else {
            self.next + 1
        };
        Some(event)
    }
}
